"""The import of kafka-python: when it is needed first, whole, and by one thread at a time."""

from __future__ import annotations

import threading

__all__ = ["import_kafka"]

_importing = threading.Lock()


def import_kafka() -> None:
    """Import kafka-python before a part of it is imported.

    Its modules import each other in circles. Two threads that begin at two of them, as those of two queries in one driver do,
    meet modules that are not whole, and fail with ImportError. It takes 0.3 s, so tasks that never need it do without.
    """
    with _importing:
        import kafka  # noqa: F401
