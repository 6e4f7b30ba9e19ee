"""The ``DefaultSource`` of the top-level modules ``pyspark_*``. PySpark imports these modules, and registers the class."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["default_source"]


def default_source(format_: str) -> type[DataSource]:
    """Return the data source class of one of our formats.

    If it can't be imported, return a class that raises an error with the reason when a query uses it. This function itself
    must never raise, because an error here would hide all Python data sources from Spark.
    """
    try:
        from connector.registration.data_sources import source_of

        return source_of(format_)
    except Exception as problem:  # noqa: BLE001
        return _stand_in(format_, f"{type(problem).__name__}: {problem}")


def _stand_in(format_: str, reason: str) -> type[DataSource]:
    class DefaultSource(DataSource):
        """Stands in for a format that could not be imported: raises ImportError when it is used."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return format_

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise ImportError(
                f'The format "{format_}" is installed but cannot be imported ({reason}). '
                "Check that the Python of Spark's workers (PYSPARK_PYTHON) has all packages that barrier-kafka needs. To try, "
                f"run there: python -c \"from connector.registration.data_sources import source_of; source_of('{format_}')\""
            )

    return DefaultSource
