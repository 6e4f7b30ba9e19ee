"""A Spark session in a process of its own that runs a benchmark's queries, one after the other.

``python -m integration.benchmarks.spark_query MEMORY CONF [JAR ...]``, with settings as JSON, answers ``{"session": seconds}``
when it is ready. Its orders (see `integration.benchmarks.orders`): ``{"run": Query}`` is answered by what a `Run` holds,
``{"start": Query}`` when the query is started, ``{"stop": true}`` when it has ended.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from pyspark.sql.streaming.query import StreamingQuery

from barrier_kafka import register
from integration.benchmarks.floor import FloorSink, FloorSource
from integration.benchmarks.orders import answer, orders
from integration.benchmarks.queries import Query
from integration.benchmarks.sessions import session


def main() -> None:
    """Obey the orders until standard input ends."""
    memory, conf, *jars = sys.argv[1:]
    begin = time.monotonic()
    spark = session(memory, jars, json.loads(conf))
    for source in (FloorSource, FloorSink):
        spark.dataSource.register(source)
    register(spark)
    answer({"session": time.monotonic() - begin})
    live: StreamingQuery | None = None
    for order in orders():
        if "run" in order:
            answer(asdict(Query(**order["run"]).run(spark)))
            continue
        if "start" in order:
            live = Query(**order["start"]).start(spark)
        elif live is not None:
            live.stop()
            if (problem := live.exception()) is not None:
                raise problem
        answer({})


if __name__ == "__main__":
    main()
