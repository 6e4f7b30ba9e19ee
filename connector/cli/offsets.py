"""``barrier offsets``: up to where a topic holds whole checkpoints, as batch readers take it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given
from connector.cli.report import Output, OutputOption, reporting
from transactional.sink import Options

__all__ = ["offsets"]

BarrierTopic = Annotated[str, typer.Argument(metavar="BARRIER_TOPIC", show_default=False)]
Servers = Annotated[
    str, typer.Option("--bootstrap-server", metavar="HOST:PORT,...", help="The brokers to ask.", show_default=False)
]


def offsets(
    barrier_topic: BarrierTopic,
    bootstrap_server: Servers,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print where the newest whole checkpoint ends, of the query that writes its marks to a barrier topic.

    The text is what `endingOffsets` takes, of Spark's Kafka source and of barrier-kafka.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report:
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
