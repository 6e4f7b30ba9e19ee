"""What a coordinator's answers say of an older copy of the location, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from connector.kafka.client.admin import Description
from connector.kafka.sink.kafka_sink import KafkaSink
from transactional.errors import LocationError
from transactional.history import History
from transactional.sink import Options
from transactional.testing import FakeClock

SCHEMA = pa.schema([("value", pa.string())])
RUN = Description("Empty", 7, 3, 900_000, -1, ())
MARK = {"producerId": 7, "epoch": 3}


def committed(began: int, state: str = "CompleteCommit") -> Description:
    return Description(state, 8, 0, 900_000, began, ())


class Admin:
    """Knows these ids."""

    def __init__(self, known: Mapping[str, Description]) -> None:
        self.known = known
        self.forgot = 0

    def forget_coordinators(self) -> None:
        self.forgot += 1

    def describe(self, ids: Iterable[str]) -> dict[str, Description]:
        return {name: self.known[name] for name in ids if name in self.known}

    def transactional_ids(self, states: Sequence[str]) -> list[str]:
        return [name for name, found in self.known.items() if found.state in states]


def ask(monkeypatch: pytest.MonkeyPatch, known: Mapping[str, Description], **history: Any) -> Mapping[str, Any]:
    given = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t", "transactionalIdPrefix": "p"}
    guarantee = history.pop("guarantee", "exactly-once")
    sink = KafkaSink(Options({**given, "deliveryGuarantee": guarantee}), SCHEMA)
    admin = history.pop("admin", None) or Admin(known)
    monkeypatch.setattr(sink, "_driver_admin", lambda: admin)
    monkeypatch.setattr(sink, "_clock", FakeClock())
    return sink.checkHistory(History(**{"queryId": "q", "position": 9, "binding": True, **history}))


@pytest.mark.parametrize(
    ("run", "mark", "binding", "refused"),
    [
        (RUN, MARK, True, False),
        (RUN, {"producerId": 7, "epoch": 2}, True, True),
        (
            RUN,
            {"producerId": 6, "epoch": 32_766},
            True,
            True,
        ),  # its epochs were used up: the id has another producer id
        (RUN, {"producerId": 7, "epoch": 2}, False, False),
        (RUN, {"producerId": 7, "epoch": 2, "unanswered": 1}, True, False),  # the run's own request came late
        (RUN, {"producerId": 7, "epoch": 1, "unanswered": 1}, True, True),
        (RUN, {"producerId": 7, "epoch": 4, "unanswered": 1}, True, True),
        (RUN, None, True, False),  # the newest run may have initialised it, or not
        (RUN, {}, True, False),  # that run was at-least-once
        (None, MARK, True, False),  # forgotten after a week
    ],
)
def test_the_run_id_is_where_the_newest_run_left_it(
    monkeypatch: pytest.MonkeyPatch,
    run: Description | None,
    mark: Mapping[str, Any] | None,
    binding: bool,
    refused: bool,
) -> None:
    known = {"p.run": run} if run else {}
    history = {"mark": mark, "late": [] if mark is None else [mark], "binding": binding}
    if refused:
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*p\.run was initialized"):
            ask(monkeypatch, known, **history)
    else:
        assert ask(monkeypatch, known, **history) == {"committed": 0}


@pytest.mark.parametrize(("query", "refused"), [("p", True), ("q", False)])
def test_a_query_that_has_not_begun_has_initialised_nothing(
    monkeypatch: pytest.MonkeyPatch, query: str, refused: bool
) -> None:
    """Under a prefix that is given, a former query may have."""
    history = {"queryId": query, "position": 0, "seen": {}}
    assert ask(monkeypatch, {}, **history) == {"committed": 0}
    if refused:
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*p\.run was initialized by a run"):
            ask(monkeypatch, {"p.run": RUN}, **history)
    else:
        assert ask(monkeypatch, {"p.run": RUN}, **history) == {"committed": 0}


def test_any_recorded_run_may_be_the_last_that_took_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that stood still may have come after the newest run, and have recorded it then."""
    newest = {"producerId": 7, "epoch": 2}
    assert ask(monkeypatch, {"p.run": RUN}, mark=newest, late=[newest, MARK]) == {"committed": 0}


@pytest.mark.parametrize(
    ("ids", "history", "refused"),
    [
        ({"p.0.1": committed(500)}, {"seen": {"committed": 500}}, False),
        ({"p.0.1": committed(501)}, {"seen": {"committed": 500}}, True),
        ({"p.0.1": committed(501, "PrepareCommit")}, {"seen": {"committed": 500}}, True),
        ({"p.0.1": committed(501)}, {"seen": {"committed": 500}, "stamp": 501}, False),
        (
            {"p.0.1": committed(501)},
            {"seen": {"committed": 500}, "handles": [{"startedAt": 501, "preparedAt": 1}]},
            False,
        ),
        ({"p.0.1": committed(501)}, {"seen": {"committed": 500}, "handles": [{"preparedAt": 501}]}, False),
        ({"p.0.1": committed(501)}, {"seen": {"committed": 500}, "binding": False}, False),
        ({"p.0.1": committed(501)}, {"seen": None}, False),  # its newest run was an older release's
        ({"p.0.1": committed(501)}, {"seen": {}}, False),  # or at-least-once
        ({"p.0.1": committed(501, "CompleteAbort")}, {"seen": {"committed": 500}}, False),
        ({"p.0.1": committed(501, "Ongoing")}, {"seen": {"committed": 500}}, False),
        ({"p.x.0.1": committed(501), "pp.0.1": committed(502)}, {"seen": {"committed": 500}}, False),  # another prefix
    ],
)
def test_no_transaction_is_committed_that_began_after_all_recorded_ones(
    monkeypatch: pytest.MonkeyPatch, ids: Mapping[str, Description], history: Mapping[str, Any], refused: bool
) -> None:
    if refused:
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*p\.0\.1 committed.*1970-01-01T00:00:00\.501"):
            ask(monkeypatch, ids, **history)
    else:
        assert ask(monkeypatch, ids, **history)["committed"] in (0, 500, 501)


def test_at_least_once_leaves_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"p.run": RUN, "p.0.1": committed(501)}
    history = {"mark": {"producerId": 1, "epoch": 1}, "seen": {"committed": 0}}
    assert ask(monkeypatch, known, guarantee="at-least-once", **history) == {}


def test_a_coordinator_that_was_replaced_and_is_behind_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Behind(Admin):
        def describe(self, ids: Iterable[str]) -> dict[str, Description]:
            found = super().describe(ids)
            return found if self.forgot else {**found, "p.run": Description("Empty", 7, 2, 900_000, -1, ())}

    assert ask(monkeypatch, {}, mark=MARK, admin=Behind({"p.run": RUN})) == {"committed": 0}
