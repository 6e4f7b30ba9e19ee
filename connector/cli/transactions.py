"""``barrier transactions``: who holds readers back, what becomes of each open transaction, and which may be ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from connector.cli.given import GivenFile, GivenOptions, options_given
from connector.cli.place import open_journal
from connector.cli.report import Output, OutputOption, Report, Yes, reporting
from connector.kafka.client.errors import missing_right
from connector.kafka.client.topics import SHOWN, Partition
from connector.transactions.assessment import Assessment
from connector.transactions.clusters import Cluster, clusters_of
from connector.transactions.ending import abort, check_abort
from connector.transactions.in_journals import Owner, owners_of
from connector.transactions.on_brokers import HeldPartition
from connector.transactions.waiting import waiting_groups
from connector.views.transactions import document, held_document, held_sentences, holder_sentences, pairs_of, row
from transactional.clock import SystemClock
from transactional.errors import ProtocolError, StoreError

__all__ = ["abort_transaction", "describe", "explain", "list_transactions"]

Locations = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LOCATION]...", help="Checkpoint locations, whose journals are read.", show_default=False),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help="The brokers to ask; by default those of the locations' sinks.",
        show_default=False,
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Look for transactions that hang in this topic, too.", show_default=False),
]
Identifier = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False)]


def list_transactions(
    location: Locations = None,
    bootstrap_server: Servers = None,
    topic: Topics = None,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the open transactions of a cluster, the oldest first, with what becomes of each.

    A transaction that hangs is found in the topics that open transactions and the locations' queries write into, and in
    those that --topic names.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report, _connected(location, bootstrap_server, given, report) as clusters:
        rows, documents, held, unseen = [], [], [], list[str]()
        for cluster in clusters:
            view, assessments = cluster.look(topic or [])
            now = cluster.admin.clock.now() * 1000
            rows += [row(each, now) for each in assessments]
            documents += [document(each) for each in assessments]
            held += [held_document(each) for each in view.held]
            unseen += [*map(str, view.silent), *view.denied]
        report.facts.update(transactions=documents, held=held, unseen=unseen)
        if rows:
            heads = ("TRANSACTIONAL ID", "PRODUCER", "STATE", "AGE", "LEFT", "PARTITIONS", "VERDICT", "OF")
            report.table(heads, rows, wraps=("TRANSACTIONAL ID", "VERDICT", "OF"))
        else:
            report.status = "nothing to do"
            report.say("no transaction is open")
        if unseen:
            report.say(f"not looked at, for want of a leader or of the right READ: {', '.join(unseen[:SHOWN])}")
        if held:
            topics = ", ".join(sorted({each["topic"] for each in held}))
            report.say(f"{len(held)} partitions hold readers back: `barrier transactions explain TOPIC` ({topics})")


def describe(
    identifier: Identifier,
    location: Locations = None,
    bootstrap_server: Servers = None,
    topic: Topics = None,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Describe the open transactions of a transactional id: what becomes of them, how that is known, and what to do."""
    given = options_given(option, options_file)
    with reporting(output, given) as report, _connected(location, bootstrap_server, given, report) as clusters:
        found = _named(identifier, clusters, topic)
        now = SystemClock().now() * 1000
        report.facts.update(transactions=[document(each) for _, each in found])
        for _, each in found:
            report.pairs(str(each.transaction), pairs_of(each, now))


def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    location: Locations = None,
    bootstrap_server: Servers = None,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain why readers of a topic stand still: which partition is held back, where, by what, and what may be done.

    That concerns read_committed readers: they stop at the first open transaction of a partition.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report, _connected(location, bootstrap_server, given, report) as clusters:
        documents: list[dict[str, Any]] = []
        exists = False
        for cluster in clusters:
            view, assessments = cluster.look([topic], only=True)
            exists = exists or topic in view.topics
            if topic in view.denied:
                raise missing_right("READ", f"topic {topic}")
            silent = [str(place) for place in view.silent]
            report.facts.setdefault("silent", []).extend(silent)
            if silent:
                report.say(f"Without a leader that answers, so nothing is known of them: {', '.join(silent[:SHOWN])}.")
            groups = _groups(cluster, view.held, report)
            documents += [{**held_document(each), "groups": groups.get(each.partition, [])} for each in view.held]
            places = {each.partition for each in view.held}
            holders = [each for each in assessments if not places.isdisjoint(each.transaction.opened)]
            report.facts.setdefault("transactions", []).extend(map(document, holders))
            report.say(*held_sentences(view.held, groups), *holder_sentences(holders, cluster.admin.clock.now() * 1000))
        if not exists:
            raise StoreError("UNKNOWN_TOPIC", option="TOPIC", topic=topic)
        report.facts.update(topic=topic, held=documents)
        if not documents and not report.facts.get("silent"):
            report.status = "nothing to do"
            report.say(f"{topic} holds no reader back: each partition can be read to its end.")


def abort_transaction(
    identifier: Identifier,
    location: Locations = None,
    bootstrap_server: Servers = None,
    topic: Topics = None,
    yes: Yes = False,
    option: GivenOptions = None,
    options_file: GivenFile = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Abort the open transaction of a program that is dead for good. Its producer is fenced, and its rows are never seen.

    What belongs to a query of ours, or may, is refused, unless the query was stopped and its journal is closed: `barrier stop
    LOCATION` commits and aborts what a dead query has left. There is no command that commits: about a query's transactions its
    journal decides, and of any other only its program knows whether it is complete.
    """
    given = options_given(option, options_file)
    with reporting(output, given) as report, _connected(location, bootstrap_server, given, report) as clusters:
        chosen = _named(identifier, clusters, topic)
        for _, each in chosen:
            check_abort(each)
        now = SystemClock().now() * 1000
        for _, each in chosen:
            report.pairs(str(each.transaction), pairs_of(each, now))
        report.facts.update(transactions=[document(each) for _, each in chosen])
        report.confirm(yes)
        done = [abort(cluster.admin, each) for cluster, each in chosen]
        if all(done):
            report.say("aborted")
        else:
            report.status = "nothing to do"
            report.say("it is not open any more, or another transaction of its id is: its program is alive")


@contextmanager
def _connected(
    locations: Sequence[str] | None, servers: str | None, given: Mapping[str, str], report: Report
) -> Iterator[list[Cluster]]:
    if not locations and servers is None:
        raise typer.BadParameter("name a LOCATION, or --bootstrap-server, or both")
    owners = [owner for path in locations or () for owner in _owners(path, given)]
    for owner in owners:
        if owner.sink is None:
            report.say(f"{owner.location}: its sink has no Kafka transactions")
    report.facts.update(locations=[owner.location for owner in owners])
    with clusters_of(owners, servers, given) as clusters:
        known = {owner.location for cluster in clusters for owner in cluster.owners}
        for owner in owners:
            if owner.sink is not None and owner.location not in known:
                report.say(f"{owner.location}: it writes into another cluster, {owner.cluster}")
        yield clusters


def _owners(path: str, given: Mapping[str, str]) -> list[Owner]:
    location, journal = open_journal(path, "no sink of ours has run on it")
    return owners_of(location, journal.ledger, given)


def _named(
    identifier: str, clusters: Sequence[Cluster], topics: Sequence[str] | None
) -> list[tuple[Cluster, Assessment]]:
    found = [
        (cluster, each)
        for cluster in clusters
        for each in cluster.look(topics or [])[1]
        if each.transaction.name == identifier
    ]
    if not found:
        raise ProtocolError("UNKNOWN_TRANSACTION", name=identifier)
    return found


def _groups(cluster: Cluster, held: Sequence[HeldPartition], report: Report) -> Mapping[Partition, list[str]]:
    try:
        return waiting_groups(cluster.config, held)
    except StoreError as problem:
        report.complain(f"who waits is not known: {problem.message}")
        return {}
