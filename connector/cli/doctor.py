"""``barrier doctor``: check everything that a query needs, before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer

from connector.cli.place import open_journal
from connector.cli.report import Report, Status
from connector.doctor.finding import CHECKS
from transactional.finding import Finding, Level
from transactional.secrets import masked_finding, secrets_of

PAGE = "docs/doctor.md"


def doctor(
    report: Report,
    given: Mapping[str, str],
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOCATION]",
            help="The query's checkpointLocation. The command checks the sink recorded in its journal.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the checks that passed.")] = False,
    try_transaction: Annotated[
        bool,
        typer.Option(
            "--try-transaction",
            help="Also abort and commit a transaction without rows in the output topic. This shows whether brokers that are "
            "not Apache Kafka's support transactions.",
        ),
    ] = False,
) -> None:
    """Before a first start, or when a start fails: check everything that a query needs.

    Also run the command after you change rights or settings. The command checks brokers, topics, tables, databases, rights,
    the checkpoint store and versions. It needs no Spark, and it writes no rows. In the checkpoint store and in a table's
    folder, it creates a file and deletes it again. Without LOCATION, the command checks the options that you pass with
    --options-file or --option. These are the options of a source or sink of barrier-kafka, or the settings of a Schema
    Registry. If the query would fail or lose a guarantee, the exit status is 1.
    """
    from connector.doctor.examine import examine_location, examine_options

    if location is None and not given:
        raise typer.BadParameter("pass a LOCATION, or options with --options-file or --option")
    if location is None:
        findings = list(examine_options(given, tries=try_transaction))
    else:
        place, _ = open_journal(
            location, "no sink of barrier-kafka has run there. Pass the sink's options with --options-file instead"
        )
        findings = list(examine_location(place, given, tries=try_transaction))
    secrets = secrets_of(given)
    findings = [masked_finding(each, secrets) for each in findings]
    shown = [each for each in findings if not (quiet and each.level is Level.GOOD)]
    counts = Counter(each.level for each in findings)
    report.facts.update(
        findings=[_document(each) for each in findings],
        counts={level.value: counts[level] for level in Level},
    )
    if shown:
        report.table(("CHECK", "", "FOUND"), [_row(each) for each in shown], wraps=("FOUND",))
    report.say(", ".join(f"{counts[level]} {level.value}" for level in Level if counts[level]))
    if counts[Level.PROBLEM]:
        report.status, report.exit = "problems", Status.REFUSED


def _row(each: Finding) -> tuple[str, str, str]:
    return each.check, each.level.value, f"{each.sentence} {each.remedy}".strip()


def _document(each: Finding) -> dict[str, str | None]:
    return {
        "check": each.check,
        "level": each.level.value,
        "sentence": each.sentence,
        "remedy": each.remedy or None,
        "condition": each.condition or None,
        "page": f"{PAGE}#{each.check}" if each.check in CHECKS else PAGE,
    }
