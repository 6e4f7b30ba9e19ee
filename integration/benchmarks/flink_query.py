"""Flink SQL in a process of its own, with the orders and answers of `integration.benchmarks.spark_query`.

``python -m integration.benchmarks.flink_query JAR`` needs nothing but PyFlink, and runs with the Python of another
environment. A query is ``{"servers", "source", "target"}``: two topics. ``run`` answers ``{"seconds", "engine_ms"}``: by the
clock from the statement to the end of the job, its last commit included, and the job's own net run time.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from integration.benchmarks.orders import answer, orders

CHECKPOINT_INTERVAL = "1 s"
SLOTS = 2
"""Subtasks that run at once: as many as Spark runs tasks."""

TABLE = """\
CREATE TEMPORARY TABLE `{name}` (`key` BYTES, `value` BYTES) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'key.format' = 'raw', 'key.fields' = 'key', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY',
  {more}
)"""

SOURCE = "'scan.startup.mode' = 'earliest-offset'"
BOUNDED = f"{SOURCE}, 'scan.bounded.mode' = 'latest-offset'"
SINK = (
    "'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{name}', "
    "'properties.transaction.timeout.ms' = '600000'"  # the connector's own is over what a broker allows
)


def main() -> None:
    """Obey the orders until standard input ends."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment
    from pyflink.version import __version__

    begin = time.monotonic()
    settings = {
        "pipeline.jars": f"file://{sys.argv[1]}",
        "parallelism.default": str(SLOTS),
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
    }
    configuration = Configuration()
    for name, text in settings.items():
        configuration.set_string(name, text)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    answer({"session": time.monotonic() - begin, "version": __version__})
    live: Any = None
    for number, order in enumerate(orders()):
        if "run" in order:
            statement = _statement(tables, number, order["run"], BOUNDED)
            begin = time.monotonic()
            result = tables.execute_sql(statement)
            result.wait()
            seconds = time.monotonic() - begin
            engine = result.get_job_client().get_job_execution_result().result().get_net_runtime()
            answer({"seconds": seconds, "engine_ms": engine})
            continue
        if "start" in order:
            live = tables.execute_sql(_statement(tables, number, order["start"], SOURCE)).get_job_client()
        elif live is not None:
            live.cancel().result()
        answer({})


def _statement(tables: Any, number: int, query: dict[str, str], source: str) -> str:
    names = f"input_{number}", f"output_{number}"
    for name, topic, more in (
        (names[0], query["source"], source),
        (names[1], query["target"], SINK.format(name=query["target"])),
    ):
        tables.execute_sql(TABLE.format(name=name, topic=topic, servers=query["servers"], more=more))
    return f"INSERT INTO `{names[1]}` SELECT `key`, `value` FROM `{names[0]}`"


if __name__ == "__main__":
    main()
