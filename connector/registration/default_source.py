"""What the top-level modules named ``pyspark_*`` offer: PySpark imports them, and registers their ``DefaultSource``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["default_source"]


def default_source(format_: str) -> type[DataSource]:
    """Return the data source of a format of ours, or one that says why it can't be imported when it is used.

    Whatever is wrong, to raise here would hide every Python data source of Spark.
    """
    try:
        from connector.registration.data_sources import source_of

        return source_of(format_)
    except Exception as problem:  # noqa: BLE001
        return _stand_in(format_, f"{type(problem).__name__}: {problem}")


def _stand_in(format_: str, reason: str) -> type[DataSource]:
    class DefaultSource(DataSource):
        """Stands in for a format that could not be imported."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return format_

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise ImportError(
                f'The format "{format_}" is installed but cannot be imported ({reason}). '
                "Does the Python of Spark's workers (PYSPARK_PYTHON) have all that barrier-kafka needs? "
                f"Try there: python -c \"from connector.registration.data_sources import source_of; source_of('{format_}')\""
            )

    return DefaultSource
