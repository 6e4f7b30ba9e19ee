"""Pass ``barrier-kafka`` the number of tasks that can run at the same time: the default for ``maxPartitions``.

Spark does not pass this number to any source. So the user's program adds the number to the source's options when the
program names the format.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

from connector.kafka.source.offsets import SOURCE_NAME
from connector.kafka.source.read_options import SLOTS
from connector.spark import internals

_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def give_slots() -> None:
    """Pass the number of a session's task slots, as an option, to each ``barrier-kafka`` reader in this program.

    This affects the readers whose format is set after the call. A second call changes nothing.
    """
    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

    for reader in (DataFrameReader, DataStreamReader):
        plain = reader.format
        if not getattr(plain, "gives_slots", False):
            reader.format = _giving(plain)  # type: ignore[method-assign]


def _giving(plain: Callable[[Any, str], Any]) -> Any:
    @functools.wraps(plain)
    def giving(self: Any, source: str) -> Any:
        named = plain(self, source)
        if source.lower() == SOURCE_NAME:
            slots = internals.slots(self._spark, slots_of)
            if slots is not None:
                return named.option(SLOTS, slots)
        return named

    giving.gives_slots = True  # type: ignore[attr-defined]
    return giving


def slots_of(setting: Callable[[str], str | None], master: str, parallelism: int) -> int | None:
    """Return how many tasks a cluster can run at the same time, according to its settings; None if unknown.

    Executors that are running now do not count: more may be started later.

    Parameters
    ----------
    setting : Callable
        Returns a setting of the Spark context.
    master : str
    parallelism : int
        The context's ``defaultParallelism``, which is the number of cores if everything runs in one process.
    """

    def number(key: str) -> int | None:
        value = setting(key)
        return int(value) if value is not None and value.strip().isdigit() else None

    wanted = number("spark.default.parallelism")
    if wanted is not None:
        return max(1, wanted)
    cluster = _CLUSTER.fullmatch(master)
    if cluster is not None:
        cores: int | None = int(cluster[1]) * int(cluster[2])
    elif master.startswith("local"):
        cores = parallelism
    else:
        grows = (setting("spark.dynamicAllocation.enabled") or "").strip().lower() == "true"
        executors = number("spark.dynamicAllocation.maxExecutors" if grows else "spark.executor.instances")
        # A standalone cluster starts as many executors as it has cores for, whatever their number should be.
        counted = executors if master.startswith(("yarn", "k8s")) else None
        cores = number("spark.cores.max") if counted is None else counted * (number("spark.executor.cores") or 1)
    return None if cores is None else max(1, cores // (number("spark.task.cpus") or 1))
