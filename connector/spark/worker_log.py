"""The log of the driver's Python workers, which no program can configure: the protocol's INFO lines go to standard error.

That is the driver's standard error. One line says that a run begins, one that a checkpoint is visible.
"""

from __future__ import annotations

import logging

__all__ = ["show_progress"]

PROTOCOL = logging.getLogger("transactional")


def show_progress() -> None:
    """Print the protocol's INFO lines from now on, unless logging is configured. *Driver, planning and commit worker.*

    It is configured, for example, by ``spark.sql.pyspark.worker.logging.enabled``, whose tables have the lines then.
    """
    if PROTOCOL.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    PROTOCOL.addHandler(handler)
    PROTOCOL.setLevel(logging.INFO)
