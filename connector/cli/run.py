"""``barrier run``: keep a driver program up."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given, pairs, seconds
from connector.cli.report import Output, Status, reporting
from connector.operations.restart_options import TYPE, from_settings
from transactional.errors import OptionError

__all__ = ["run"]


def run(
    script: Annotated[str, typer.Argument(help="The driver program, a Python script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.", show_default=False)
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="none, fixed-delay, failure-rate or exponential-delay, which is the default. The same as "
            f"--set {TYPE}=NAME.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the strategy, by Flink's keys: restart-strategy.fixed-delay.attempts=10. A setting that is left "
            "out is read from the environment: BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS.",
            show_default=False,
        ),
    ] = None,
    health_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A file that is kept up to date: the health of the run, as JSON.", show_default=False
        ),
    ] = None,
    stop_timeout: Annotated[
        float,
        typer.Option(
            callback=seconds,
            metavar="SECONDS",
            help="How long its queries may take to their final checkpoints when it is stopped.",
        ),
    ] = 600.0,
    single_driver: Annotated[
        bool,
        typer.Option(
            "--single-driver",
            help="Nothing else starts these queries: a former driver that can't be seen from here, of a container that was "
            "replaced, is gone, and what it has left may be ended or taken back.",
        ),
    ] = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
) -> None:
    """Keep a driver program up: start it again when it fails, or dies, as the strategy decides.

    Rewinds that its queries ask for are done between two drivers. SIGTERM ends its queries at a final checkpoint: afterwards
    no transaction is open, and the exit status is 0. It ends with 1 when no restart helps, or the strategy gives up;
    with the script's own exit status when that dies again and again before any query has begun.
    """
    from connector.operations.driver_program import DriverProgram, NeverStartedError
    from connector.operations.health import Health
    from connector.operations.supervision import Supervision

    given = options_given(option, options_file)
    config = pairs(settings or [], "--set") | ({TYPE: strategy} if strategy is not None else {})
    try:
        chosen = from_settings(config)
    except OptionError as wrong:
        raise typer.BadParameter(wrong.message) from wrong
    if not os.path.isfile(script):  # each life would fail alike
        raise typer.BadParameter(f"there is no script {script}")
    command = [sys.executable, "-m", "connector.operations.script", script, *(arguments or [])]
    with reporting(Output.TABLE, given) as report:
        supervision = Supervision(
            "barrier run", chosen, given, report.complain, single_driver, health=Health(health_file)
        )
        program = DriverProgram(command, supervision, stop_timeout)
        try:
            failure = program.run()
        except NeverStartedError as never:
            report.complain(str(never))
            raise typer.Exit(never.status) from None
        if failure is not None:
            raise typer.Exit(Status.REFUSED)  # the reason was printed
