"""``barrier inject`` writes marks into a barrier topic; ``barrier offsets`` prints the newest mark's offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from connector.cli.report import Report
from connector.operations.signals import StopRequest, obeying_signals
from transactional.sink import Options

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", metavar="HOST:PORT,...", help="The Kafka brokers to connect to.", show_default=False
    ),
]


def inject(
    report: Report,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write marks for.", show_default=False)],
    barrier_topic: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The barrier topic to write the marks to. It is created if it does not exist.",
            show_default=False,
        ),
    ],
    bootstrap_server: Servers,
    given: Mapping[str, str],
    interval: Annotated[float, typer.Option(min=0.01, help="The time between two marks, in seconds.")] = 10.0,
) -> None:
    """To align queries on another program's topic: write marks for TOPIC into a barrier topic.

    Use the command for a topic that no barrier-kafka query writes to. It writes a mark every --interval seconds, until it
    gets SIGTERM or Ctrl-C. A mark records where TOPIC ends, so that all readers of TOPIC can stop at the same offsets. If you
    start a second injector for a barrier topic, it fences the first one, and continues after the newest mark.
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
        str,
        typer.Argument(metavar="BARRIER_TOPIC", help="The barrier topic to read the marks from.", show_default=False),
    ],
    bootstrap_server: Servers,
    given: Mapping[str, str],
) -> None:
    """When a batch job must read only whole checkpoints: print the offsets where the newest checkpoint in BARRIER_TOPIC ends.

    Pass the printed text as `endingOffsets` to Spark's Kafka source or to barrier-kafka.
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
