"""Builds the ``DefaultSource`` of each top-level module ``pyspark_*``. PySpark imports the module and registers it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

__all__ = ["default_source"]


def default_source(format_: str) -> type[DataSource]:
    """Return the data source class of one of our formats.

    If the class can't be imported, return a class that raises an error with the reason when a query uses the format.
    This function must never raise an error, because that would hide all Python data sources from Spark. So `connector`
    is imported inside the function.
    """
    try:
        from connector.registration.data_sources import source_of

        return source_of(format_)
    except Exception as problem:  # noqa: BLE001
        return _stand_in(format_, f"{type(problem).__name__}: {problem}")


def _stand_in(format_: str, reason: str) -> type[DataSource]:
    class DefaultSource(DataSource):
        """A placeholder for a format that could not be imported. It raises ImportError when a query uses it."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return format_

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise ImportError(
                f'The format "{format_}" is installed but cannot be imported ({reason}). '
                "Maybe the Python of Spark's workers (PYSPARK_PYTHON) lacks packages that barrier-kafka needs. To check, "
                f"run there: python -c \"from connector.registration.data_sources import source_of; source_of('{format_}')\""
            )

    return DefaultSource
