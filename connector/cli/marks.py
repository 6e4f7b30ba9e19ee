"""``barrier inject`` and ``barrier offsets``: marks of a barrier topic, written for a topic and read for batch jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from connector.cli.report import Report
from connector.operations.signals import StopRequest, obeying_signals
from transactional.sink import Options

__all__ = ["inject", "offsets"]

Servers = Annotated[
    str, typer.Option("--bootstrap-server", metavar="HOST:PORT,...", help="The brokers to ask.", show_default=False)
]


def inject(
    report: Report,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that gets marks.", show_default=False)],
    barrier_topic: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Where the marks go; it is created if it does not exist.", show_default=False
        ),
    ],
    bootstrap_server: Servers,
    given: Mapping[str, str],
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds from mark to mark.")] = 10.0,
) -> None:
    """When queries are to be aligned on a topic that no query of barrier-kafka writes: write its marks.

    The command writes a mark every few seconds until SIGTERM or Ctrl-C. A mark says where the topic ends, so its readers can
    agree where to stop. The newest injector of a barrier topic fences all others, and continues after the newest mark.
    """
    from connector.kafka.sink.injector import inject_barriers

    wish = StopRequest()
    options = {**given, "kafka.bootstrap.servers": bootstrap_server}
    with obeying_signals(wish):
        written = inject_barriers(topic, barrier_topic, options, interval_seconds=interval, stop=wish.asked)
    report.facts.update(marks=written)
    report.say(f"{written} marks of {topic} were written to {barrier_topic}")


def offsets(
    report: Report,
    barrier_topic: Annotated[
        str, typer.Argument(metavar="BARRIER_TOPIC", help="The topic that has the marks.", show_default=False)
    ],
    bootstrap_server: Servers,
    given: Mapping[str, str],
) -> None:
    """When a batch job is to read whole checkpoints only: print where the newest one ends, from the marks in a barrier topic.

    Pass the text as `endingOffsets` to Spark's Kafka source or to barrier-kafka.
    """
    from connector.kafka.marks.barrier_topic import newest_mark
    from connector.kafka.sink.write_options import parse_write_options

    settings = parse_write_options(Options({**given, "kafka.bootstrap.servers": bootstrap_server})).client
    mark = newest_mark(settings.for_librdkafka(), barrier_topic, exact=True)
    ends: dict[str, dict[str, int]] = {}
    for (topic, number), end in sorted(mark.ends.items() if mark is not None else ()):
        ends.setdefault(topic, {})[str(number)] = end
    report.facts.update(offsets=ends, checkpoint=mark.checkpoint.checkpoint if mark is not None else None)
    if mark is None:
        report.status = "nothing to do"
        report.say(f"{barrier_topic} has no mark yet")
    else:
        report.say(json.dumps(ends))
