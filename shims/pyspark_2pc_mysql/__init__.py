"""Where PySpark finds the format ``2pc-mysql`` without a registration call.

PySpark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``.
"""

from pyspark.sql.datasource import DataSource

try:
    from connector.sql.format import TwoPhaseMysqlDataSource as DefaultSource
except Exception as problem:  # noqa: BLE001 - whatever is wrong here, raising would hide every Python source of Spark.
    _problem = f"{type(problem).__name__}: {problem}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for a format that could not be imported: says so when it is used."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return "2pc-mysql"

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise ImportError(
                f'The format "2pc-mysql" is installed but cannot be imported ({_problem}). '
                "Does the Python of Spark's workers (PYSPARK_PYTHON) have all that barrier-kafka needs? "
                "Try there: python -c 'import connector.sql.format'"
            )
