"""``barrier serve`` as a process, asked over HTTP: what it shows, whom it answers, and that it changes nothing."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connector.cli import main
from connector.kafka.client.topics import Partition, TopicInfo, short_id
from connector.kafka.source.offsets import SourceOffset
from connector.location.location import CheckpointLocation
from connector.serving import watcher
from connector.serving.facts import ClusterFacts, QueryFacts, _lags, look_at_query
from connector.serving.samples import METRICS, samples
from connector.serving.web import Page, _commands, _options, _pending, _tone
from connector.spark.process import this_process
from connector.transactions.assessment import assess
from connector.views.queries import QueryState
from integration.served import Served
from tests.connector.cli_place import CliPlace, dead_process
from tests.connector.test_transactions import DECIDED, STOP, owner, transaction
from tests.transactional.bodies import restore_begun
from transactional.barrier import BarrierKind, CheckpointBarrier
from transactional.entry import EntryKind
from transactional.errors import OptionError
from transactional.journal import Journal
from transactional.restore import cut

Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers, which end with the test."""
    with ExitStack() as started:

        def start(*arguments: str, **environment: str) -> Served:
            return started.enter_context(Served("--no-brokers", *arguments, environment={**os.environ, **environment}))

        yield start


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """Checkpoint 2 is settled; micro-batch 1 was declined and prepared; checkpoint 6 took it in and is not settled."""
    found = CliPlace(tmp_path)
    found.run(lifetime=900.0, process=dict(dead_process()))
    found.decided(0, rows=3, output={"orders-0": 17})
    found.prepared(1)
    declined = {"run": 1, "batch": 1, "reason": "HOOK_FAILED", "detail": "the hook <script>alert(1)</script> raised"}
    found.append(EntryKind.DECLINED, declined)
    found.decided(2, settle=False)
    restart = {"by": "supervise", "number": 1, "delay": 2.0, "condition": "", "reason": "killed", "rewound": False}
    found.append(EntryKind.RESTARTED, restart)
    return found


def test_the_overview_and_a_query_show_what_the_journal_holds(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    overview = served.ask().text
    assert str(place) in overview
    assert "driver gone" in overview
    query = served.ask("queries/0").text
    assert "its prepared rows wait for the next start" in query
    assert "Checkpoint 5 was declined" in query
    assert "Started again by supervise (restart 1), after 2 s: killed" in query
    assert "&lt;script&gt;alert(1)" in query
    assert "<script>alert" not in query
    assert 'id="charts" data-query="/queries/0"' in query
    assert str(place.output) in query, "the sink's options"


def test_a_checkpoint_shows_its_parts_until_it_is_settled(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    settled, decided = served.ask("queries/0/checkpoints/2").text, served.ask("queries/0/checkpoints/6").text
    assert "orders-0: 17" in settled
    assert "The journal does not keep the parts" in settled
    assert "decided, subsumes micro-batches 1, not settled" in decided or "decided, not settled" in decided
    assert decided.count("<td>open</td>") == 2
    assert served.ask("queries/0/checkpoints/77").status == 404
    assert served.ask("queries/1").status == 404


def test_a_page_needs_no_other_host_s_files_and_runs_no_script_of_its_own(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    for path in ("", "queries/0", "queries/0/checkpoints/2", "transactions", "nothing"):
        answer = served.ask(path)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert not re.search(r"https?://(?!www\.w3\.org)|<script>|style=|onclick", answer.text)
    for name in ("style.css", "live.js", "charts.js", "uplot/uPlot.iife.min.js", "uplot/uPlot.min.css"):
        assert served.ask(f"static/{name}").status == 200


def test_the_charts_get_every_checkpoint_and_every_restart(place: CliPlace, serve: Serve) -> None:
    found = json.loads(serve(str(place)).ask("queries/0/series").text)
    assert [(event["kind"], event["id"]) for event in found["events"]] == [
        ("completed", 2),
        ("failed", 5),
        ("open", 6),
        ("restart", None),
    ]
    assert "restart 1 by supervise: killed" in found["events"][3]["said"]
    checkpoints = found["checkpoints"]
    assert {name: len(values) for name, values in checkpoints.items()} == dict.fromkeys(checkpoints, 1)
    assert "rows" not in checkpoints
    assert checkpoints["rate"] == [None]
    assert found["lag"] == {"time": [], "topics": {}}


@pytest.mark.parametrize(
    ("alive", "when_asked", "commands"),
    [(False, False, [STOP]), (True, False, []), (None, None, []), (False, None, [])],
)
def test_a_command_is_shown_beside_a_query_only_if_its_driver_is_gone(
    alive: bool | None, when_asked: bool | None, commands: list[str]
) -> None:
    """What the brokers' last answers led to may be older than the driver that runs now."""
    found = assess(transaction(), [owner(when_asked, DECIDED)])
    cluster = ClusterFacts("host:9092", assessments=[found, found])
    assert _commands(QueryFacts("/c/etl", alive=alive), [cluster]) == commands
    assert _commands(QueryFacts("/c/copy", alive=False), [cluster]) == []


def test_the_oldest_open_transaction_may_be_one_that_only_the_brokers_know(tmp_path: Path) -> None:
    """A task that was killed before its micro-batch was prepared has left it."""
    cluster = ClusterFacts("host:9092", assessments=[assess(transaction(), [owner(False)])])
    shown = _pending(QueryFacts("/c/etl"), [cluster], now=31.0)
    assert (shown.oldest_age, shown.lifetime, shown.overdue) == (30.0, 60.0, False)
    assert _pending(QueryFacts("/c/copy"), [cluster], now=31.0).oldest_age is None
    place = CliPlace(tmp_path)
    place.run(lifetime=900.0)
    place.prepared(0)
    facts = replace(looked(place), path="/c/etl")
    prepared = facts.ledger.batches[0].time / 1000
    assert _pending(facts, [cluster], now=prepared + 5).oldest_age == prepared + 4, "the older of the two"
    young = replace(
        cluster, assessments=[assess(replace(transaction(), started_ms=int(1000 * prepared)), [owner(False)])]
    )
    shown = _pending(facts, [young], now=prepared + 5)
    assert (shown.oldest_age, shown.lifetime) == (5.0, 900.0)


def test_a_killed_query_whose_rows_are_committed_may_have_left_transactions_at_the_brokers(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dict(dead_process()))
    place.decided(0)
    found = replace(looked(place), path="/c/etl")
    cluster = ClusterFacts("host:9092", assessments=[assess(transaction(), [owner(False)])] * 2)

    def shown(facts: QueryFacts) -> str:
        watcher: Any = SimpleNamespace(queries=[facts], clusters=[cluster], lag=lambda path: {})
        request: Any = SimpleNamespace(path_params={"number": "0"})
        return bytes(Page(watcher, metrics=False, is_over=lambda: False).query(request).body).decode()

    left = "At the brokers, 2 transactions of this query are still open."
    assert "driver gone" in shown(found)
    assert left in shown(found)
    assert left not in shown(replace(found, alive=True)), "a running query has open transactions"
    assert left not in shown(replace(found, path="/c/copy"))


def test_what_is_new_is_told_and_shown(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    with urllib.request.urlopen(served.address + "events", timeout=30) as events:
        first = [events.readline() for _ in range(3)]
        place.prepared(3)
        assert events.readline().startswith(b"data: ")
    assert first[1].startswith(b"data: ")
    served.until("queries/0", lambda text: "micro-batches 3: 5 rows in 1 transactions" in text)


def test_many_readers_of_events_delay_no_page(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    with ExitStack() as streams:
        for _ in range(60):
            stream = streams.enter_context(urllib.request.urlopen(served.address + "events", timeout=30))
            assert stream.readline()
        begin = time.monotonic()
        assert served.ask("metrics").status == 200
        assert time.monotonic() - begin < 10, "a stream's beat is 15 s"


def test_a_store_that_does_not_answer_keeps_no_other_query_from_being_seen(
    place: CliPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, answer, look = str(tmp_path / "silent"), threading.Event(), look_at_query

    def slow(location: CheckpointLocation, journal: Journal) -> QueryFacts:
        if location.path == silent:
            answer.wait(30)
        return look(location, journal)

    monkeypatch.setattr("connector.serving.watcher.look_at_query", slow)
    monkeypatch.setattr(watcher, "FIRST_SECONDS", 0.5)
    with watcher.Watcher([silent, str(place)], brokers=False) as watched:
        first, second = watched.queries
        assert (first.looked, second.state) == (0, QueryState.GONE)
        named = {(sample.name, sample.labels[0]) for sample in samples(watched.queries, (), 0)}
        assert ("barrier_journal_readable", silent) not in named
        answer.set()


def test_offsets_of_another_form_are_no_lag_and_hide_no_other(place: CliPlace, serve: Serve) -> None:
    offsets = place.path / "offsets"
    offsets.mkdir(exist_ok=True)
    (offsets / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"source":"barrier-kafka","version":1}')
    assert "driver gone" in serve(str(place)).ask("queries/0").text


def test_a_location_is_one_query_however_it_is_spelt(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place), f"{place}/", f"file://{place}")
    assert served.ask("queries/1").status == 404
    assert "barrier restore --as-is" not in served.ask("queries/0").text


def test_a_location_with_credentials_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for location in ("s3://AKIA:swordfish@bucket/orders", "abfss://c@a.dfs.core.windows.net/o?sig=swordfish"):
        assert main(["serve", location]) == 1
        said = capsys.readouterr()
        assert "INVALID_OPTION" in said.err
        assert "swordfish" not in said.err + said.out


def test_a_signature_in_a_location_is_one_of_its_credentials() -> None:
    with pytest.raises(OptionError, match="INVALID_OPTION") as refused:
        watcher.location_of("s3://bucket/orders?X-Amz-Signature=swordfish")
    assert "swordfish" not in str(refused.value)


def test_a_failed_query_whose_driver_is_gone_is_called_so(tmp_path: Path, serve: Serve) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dict(dead_process()))
    place.prepared(0)
    place.append(EntryKind.ABORTED, {"run": 1, "batch": 1})
    served = serve(str(place))
    assert "Run 1 has ended (aborted), and the driver" in served.ask("queries/0").text
    assert served.metrics()["barrier_query_state", "gone"] == 1


def source_line(kind: str) -> str:
    """Return a source's line of ``offsets/N``; `kind` is of the barrier at its end, or ``other`` for another source."""
    place = Partition("orders", 0)
    offset = SourceOffset(topics={place: 7}, start={place: 0}, ids={"orders": "x"})
    if kind == "other":
        return '{"logOffset":3}'
    return json.dumps(replace(offset, barrier=CheckpointBarrier(1, BarrierKind(kind), 1_000)).to_json())


@pytest.mark.parametrize(
    ("kinds", "after", "word"),
    [
        (["final"], "", "ended after final checkpoint"),
        (["final", "final"], "", "ended after final checkpoint"),
        (["checkpoint"], "", "driver gone"),
        (["final", "checkpoint"], "", "driver gone"),
        (["final", "other"], "", "driver gone"),
        (["final"], "run", "driver gone"),
        (["final"], "prepared", "driver gone"),
        (["final"], "aborted", "driver gone"),
        (["final"], "planned", "driver gone"),
    ],
)
def test_a_query_that_ended_after_its_final_checkpoint_is_not_called_gone(
    tmp_path: Path, kinds: list[str], after: str, word: str
) -> None:
    place = CliPlace(tmp_path)
    run = place.run(process=dict(dead_process()))
    place.decided(0)
    (place.path / "offsets" / "0").write_text("\n".join(["v1", "{}", *map(source_line, kinds)]))
    if after == "run":
        place.run(process=dict(dead_process()))
    elif after == "prepared":
        place.prepared(1)
    elif after == "aborted":
        place.append(EntryKind.ABORTED, {"run": run, "batch": 1})
    elif after == "planned":  # by a second start in the same driver, which then died: the journal does not know it
        (place.path / "offsets" / "1").write_text(f"v1\n{{}}\n{source_line('final')}")
    found = looked(place)
    assert (found.state, found.word) == (QueryState.GONE, word)
    assert ("after its final checkpoint" in found.sentence) == (word != "driver gone")


def test_the_page_shows_that_a_query_ended_after_its_final_checkpoint(tmp_path: Path, serve: Serve) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dict(dead_process()))
    place.decided(0)
    (place.path / "offsets" / "0").write_text(f"v1\n{{}}\n{source_line('final')}")
    served = serve(str(place))
    for page in ("", "queries/0"):
        text = served.ask(page).text
        assert "ended after final checkpoint" in text
        assert "driver gone" not in text
    assert served.metrics()["barrier_query_state", "gone"] == 1


def test_nothing_can_be_changed(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    before = sorted(path.name for path in (place.path / "barrier" / "log").iterdir())
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert served.ask("queries/0", method).status == 405
    assert sorted(path.name for path in (place.path / "barrier" / "log").iterdir()) == before


def test_another_site_s_name_for_this_machine_is_refused(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    for name in ("evil.example", "localhost.evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        assert served.ask(headers={"Host": name}).status == 421
    assert served.ask(headers={"Host": "localhost:8400"}).status == 200
    assert served.ask(headers={"Host": "[::1]:8400"}).status == 200


def test_who_is_not_on_this_machine_needs_the_token(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place), "--host", "0.0.0.0")
    token = served.address.partition("?token=")[2]
    assert len(token) >= 24
    for path in ("", "queries/0", "metrics", "events", "static/live.js", "?token=wrong"):
        assert served.ask(path).status == 401
    assert served.ask(headers={"Cookie": "a/b=1"}).status == 401
    assert served.ask(headers={"Cookie": f'a={{"x":1}}; barrier_token={token}'}).status == 200
    assert served.ask(headers={"Authorization": f"Bearer {token}"}).status == 200
    entered = served.ask(f"queries/0?token={token}")
    assert (entered.status, entered.headers["Location"]) == (303, "/queries/0")
    assert served.ask(f"queries/0?a=b&token={token}").headers["Location"] == "/queries/0?a=b"
    cookie = entered.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert served.ask("queries/0", headers={"Cookie": cookie.partition(";")[0]}).status == 200


def test_a_part_of_the_token_is_not_the_token(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place), BARRIER_SERVE_TOKEN="seventeen")
    for text in ("", "s", "sevente", "seventeen1", "SEVENTEEN"):
        assert served.ask(f"?token={text}").status == 401
        assert served.ask(headers={"Cookie": f"barrier_token={text}"}).status == 401
        assert served.ask(headers={"Authorization": f"Bearer {text}"}).status == 401


def test_a_token_can_be_chosen(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place), BARRIER_SERVE_TOKEN="seventeen")
    assert served.address.endswith("?token=seventeen")
    assert served.ask().status == 401
    assert served.ask(headers={"Authorization": "bearer seventeen"}).status == 200


def test_a_journal_that_can_t_be_read_is_named_and_hides_no_other(
    place: CliPlace, tmp_path: Path, serve: Serve
) -> None:
    damaged = tmp_path / "damaged"
    (damaged / "barrier" / "log").mkdir(parents=True)
    (damaged / "barrier" / "log" / "1.json").write_text("{")
    served = serve(str(damaged), str(tmp_path / "nothing"), str(place))
    overview = served.ask().text
    assert "JOURNAL_DAMAGED" in overview
    assert "has not run" in overview
    assert "driver gone" in overview
    assert "JOURNAL_DAMAGED" in served.ask("queries/0").text
    (damaged / "barrier" / "log" / "1.json").unlink()
    served.until("queries/0", lambda text: "There is no journal" in text)


def test_metrics_are_what_the_journal_says(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place))
    answer = served.ask("metrics", headers={"Accept": "text/plain"})
    assert answer.headers["Content-Type"].startswith("text/plain")
    found = served.metrics()
    assert found["barrier_checkpoints_total", "triggered"] == 3
    assert found["barrier_checkpoints_total", "completed"] == 1
    assert found["barrier_checkpoints_total", "declined"] == 1
    assert found["barrier_committed_rows_total",] == 3
    assert found["barrier_committed_bytes_total",] == 24
    assert found["barrier_restarts_total",] == 1
    assert found["barrier_query_state", "gone"] == 1
    assert found["barrier_query_state", "running"] == 0
    assert found["barrier_unsettled_checkpoints",] == 1
    assert found["barrier_transaction_lifetime_seconds",] == 900
    assert found["barrier_checkpoint_seconds_total", "prepared"] == 2
    assert found["barrier_oldest_transaction_seconds",] >= 0
    assert served.ask("metrics", headers={"Accept": "application/openmetrics-text"}).text.endswith("# EOF\n")


def test_without_metrics_there_is_no_such_page(place: CliPlace, serve: Serve) -> None:
    served = serve(str(place), "--no-metrics")
    assert served.ask("metrics").status == 404
    assert "/metrics" not in served.ask().text


def test_a_running_driver_is_called_so(tmp_path: Path, serve: Serve) -> None:
    place = CliPlace(tmp_path)
    place.run(process=this_process())
    assert "driver runs" in serve(str(place)).ask().text


def test_a_port_that_is_taken_is_named(place: CliPlace, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    port = serve(str(place)).address.rstrip("/").rpartition(":")[2]
    assert main(["serve", str(place), "--port", port]) == 1
    assert "INVALID_OPTION" in capsys.readouterr().err


def test_secrets_are_not_shown(tmp_path: Path, serve: Serve) -> None:
    place = CliPlace(tmp_path)
    place.run()
    found = json.dumps(
        [serve(str(place), "--option", "kafka.sasl.password=swordfish").ask(path).text for path in ("", "queries/0")]
    )
    assert "swordfish" not in found


@pytest.mark.parametrize("name", ["0", ".0.0f8fad5b-d9cb-469f-a165-70867728950e.tmp"])
def test_a_query_that_died_before_its_first_entry_is_a_problem_and_not_one_that_has_not_run(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "offsets").mkdir()
    location = CheckpointLocation(str(tmp_path))
    assert look_at_query(location, location.journal()).state is QueryState.EMPTY
    (tmp_path / "offsets" / name).write_text("v1")
    found = look_at_query(location, location.journal())
    assert (found.state, _tone(found)) == (QueryState.BEGUN, "problem")


def looked(place: CliPlace) -> QueryFacts:
    location = CheckpointLocation(str(place))
    return look_at_query(location, location.journal())


def test_the_metrics_of_a_journal_that_can_t_be_read_say_so_and_nothing_else(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    (place.path / "barrier" / "log").mkdir(parents=True)
    (place.path / "barrier" / "log" / "1.json").write_text("{")
    found = {sample.name: sample.value for sample in samples([looked(place)], (), 0)}
    assert found.pop("barrier_last_look_timestamp_seconds") > 0
    assert found == {"barrier_journal_readable": 0}


def test_rows_that_wait_for_a_decision_are_counted_as_prepared_only(place: CliPlace) -> None:
    place.prepared(3, rows=7)
    found = {sample.name: sample.value for sample in samples([looked(place)], (), 0)}
    assert (found["barrier_committed_rows_total"], found["barrier_committed_bytes_total"]) == (3, 24)
    assert (found["barrier_prepared_rows"], found["barrier_prepared_transactions"]) == (7, 1)


class Brokers:
    """In place of a cluster's client: a topic of 10 rows that are stable."""

    def __init__(self, admin: object, identity: str = "") -> None:
        self.identity = identity

    def topics(self, names: Iterable[str], awaited: Collection[Partition]) -> dict[str, TopicInfo]:
        return {"orders": TopicInfo(self.identity, {0: 1}, None)}

    def ends(self, topic: str) -> dict[Partition, tuple[int, int]]:
        return {Partition(topic, 0): (10, 12)}


def test_a_lag_is_none_of_a_topic_that_was_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.serving.facts.PartitionAdmin", Brokers)
    was, now = str(uuid.uuid4()), str(uuid.uuid4())
    place = Partition("orders", 0)
    source = SourceOffset(topics={place: 7}, start={place: 0}, ids={"orders": short_id(was)})
    assert _lags(Brokers(None, was), [source, source]) == {"orders": 6}  # type: ignore[arg-type]
    assert _lags(Brokers(None, now), [source]) == {}  # type: ignore[arg-type]


def test_a_location_that_is_being_restored_counts_nothing(place: CliPlace, tmp_path: Path) -> None:
    """Its counters will be those of the origin: an increase would count all of what the origin has done."""
    saved = cut(place.ledger(), place.checkpoints[0])
    new = CliPlace(tmp_path / "new")
    new.append(EntryKind.RESTORING, restore_begun(saved, place.checkpoints[0], True, str(new)).to_json())
    counted = {name for name, metric in METRICS.items() if metric.grows}
    for facts, wanted in ((looked(place), counted), (looked(new), set())):
        assert counted & {sample.name for sample in samples([facts], (), 0)} == wanted


def test_a_secret_that_a_forged_journal_holds_is_not_shown(tmp_path: Path) -> None:
    place = CliPlace(tmp_path)
    options = {"path": "out", "kafka.sasl.password": "swordfish", "x.authorization": "Basic swordfish"}
    place.run(setup={"class": "", "options": options, "schema": {}})
    run = looked(place).ledger.newest_run
    assert run is not None
    shown = dict(_options(run))
    assert shown["path"] == "out"
    assert sorted(shown) == sorted(options)
    assert "swordfish" not in str(shown)


@pytest.mark.parametrize("left", ["nothing", "prepared", "decided"])
def test_a_driver_that_is_gone_is_a_problem_unless_its_query_ended_with_a_final_checkpoint(
    tmp_path: Path, left: str
) -> None:
    place = CliPlace(tmp_path)
    place.run(process=dict(dead_process()))
    place.decided(0)
    if left == "prepared":
        place.prepared(1)
    if left == "decided":
        place.decided(1, settle=False)
    found = looked(place)
    assert (found.state, _tone(found)) == (QueryState.GONE, "problem")
    assert ("all rows that it prepared are committed" in found.sentence) == (left == "nothing")
    assert "no transaction is open" not in found.sentence, "the journal can't show this: tasks may have died"
    assert _tone(replace(found, finished=True)) == "well"
