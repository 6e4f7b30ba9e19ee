"""Import kafka-python when it is first needed, as a whole, and in one thread at a time."""

from __future__ import annotations

import threading

_importing = threading.Lock()


def import_kafka() -> None:
    """Import kafka-python as a whole. Call this before you import any of its modules.

    kafka-python's modules import each other in cycles. If two threads (of two queries in one driver, for example) start with
    different modules, each thread can find modules that are only partly imported, and fail with ImportError. The import takes
    0.3 s, so tasks that do not need kafka-python skip it.
    """
    with _importing:
        import kafka  # noqa: F401
