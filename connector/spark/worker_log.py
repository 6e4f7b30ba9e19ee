"""The log of the driver's Python workers. The user's program can't configure it, so its INFO lines go to the driver's stderr.

One line reports that a run begins, another that a checkpoint is visible.
"""

from __future__ import annotations

import logging

PROTOCOL = logging.getLogger("transactional")


def show_progress() -> None:
    """Print INFO lines about runs and checkpoints from now on, unless logging is already configured.

    Called on the driver, in the planning process and in the commit process. If Spark's setting
    ``spark.sql.pyspark.worker.logging.enabled`` configures logging, Spark's log tables contain the lines.
    """
    if PROTOCOL.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    PROTOCOL.addHandler(handler)
    PROTOCOL.setLevel(logging.INFO)
