"""Register formats in a Spark session. Spark finds the formats of installed packages by itself, but no others."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from connector.registration.data_sources import add_sinks, known_sources, travels
from connector.registration.slots import give_slots
from connector.registration.start_check import check_starts
from connector.spark import internals
from transactional.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def register(spark: SparkSession, *sinks: type[TwoPhaseCommitSink[Any, Any]]) -> None:
    """See `connector.register`."""
    add_sinks(sinks)
    internals.be_active(spark)
    for each in known_sources().values():  # replace the formats that Spark knows: they may be another package's
        # If a format that Spark finds by itself is registered, Spark warns about it, again in each query.
        if travels(each) or not internals.finds_class(spark, each):
            spark.dataSource.register(each)
    _warn_of_workers(internals.worker_python(spark))
    check_starts()
    give_slots()


def _warn_of_workers(program: str | None) -> None:
    """Warn if Spark's workers use a different Python (`program`) from this process, and that Python lacks our packages."""
    found = None if program is None else shutil.which(program)
    if found is None or os.path.abspath(found) == sys.executable:
        return
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec('connector') is None)"
    with suppress(OSError, subprocess.TimeoutExpired):
        if subprocess.run([found, "-c", search], capture_output=True, timeout=20, check=False).returncode:
            log.warning(
                "Spark's Python workers run %s, where barrier-kafka is not installed: queries will fail with \"No module "
                "named 'connector'\". Set PYSPARK_PYTHON=%s before you create the session, or install barrier-kafka there",
                found,
                sys.executable,
            )


def register_lost(spark: SparkSession | None) -> None:
    """Register the formats that Spark does not find in this session.

    Spark searches for formats once per session, and keeps the result even if the search was killed.
    """
    if spark is None:
        return
    for name, each in known_sources().items():
        if internals.knows_format(spark, name) is False:
            log.warning("Spark did not find the format %s; it is now registered in this session", name)
            spark.dataSource.register(each)
