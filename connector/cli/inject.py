"""``barrier inject``: barriers for a topic that no query writes."""

from __future__ import annotations

from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given
from connector.cli.report import Output, OutputOption, reporting
from connector.operations.signals import StopWish, obeying_signals

__all__ = ["inject"]


def inject(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    barrier_topic: Annotated[
        str, typer.Option(metavar="NAME", help="Where the marks go. Created if it is not there.", show_default=False)
    ],
    bootstrap_server: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="The brokers to ask.", show_default=False)
    ],
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds from mark to mark.")] = 10.0,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a mark of a topic every few seconds, until SIGTERM or Ctrl-C.

    A mark is where the topic ends: readers of a topic that no query of barrier-kafka writes can agree where to stop. The newest
    injector of a barrier topic fences all others, and goes on behind the newest mark.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report:
        from connector.kafka.sink.injector import inject_barriers

        wish = StopWish()
        options = {**given, "kafka.bootstrap.servers": bootstrap_server}
        with obeying_signals(wish):
            written = inject_barriers(topic, barrier_topic, options, intervalSeconds=interval, stop=wish.asked)
        report.facts.update(marks=written)
        report.say(f"{written} marks of {topic} were written to {barrier_topic}")
