"""P3: continue the newest run in the journal, or journal a new run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from transactional import entries, faults
from transactional.comparison import compare_histories
from transactional.coordinator.session import Session
from transactional.errors import FencedError, LocationError, PutBackError, StoreReplacedError
from transactional.history import History, RunMark
from transactional.ledger import Ledger, RunRecord
from transactional.ownership import must_be_at, must_have_started_last, must_own, newest_run, rewinding, superseded
from transactional.recovery import Claim, check_account, check_location, whose_run
from transactional.sink import TwoPhaseCommitSink, guard_run, lifetime_of, routes_of

log = logging.getLogger(__name__)


class Claimant:
    """Chooses the run of one coordinator: the newest run if it belongs to this driver, otherwise a new run."""

    def __init__(self, session: Session, under: Callable[[str], TwoPhaseCommitSink[Any, Any]] | None) -> None:
        self._session = session
        self._journal = session.journal
        self._sink = session.sink
        self._settings = session.settings
        # Builds the same sink with an old prefix, to sweep the transactions that earlier runs left under that prefix.
        self._under = under

    def take(self) -> tuple[RunRecord, bool]:
        """Return the newest run if it belongs to this driver and has the same settings; otherwise journal and return a new run.

        The second value is True if the run is new.
        """
        claim, run = whose_run(self._journal.ledger, self._settings.driver, self._settings.digest)
        if claim is Claim.FENCED and run is not None:
            self._fence_own(run)
        if claim is not Claim.TAKE or run is None:
            run = self._claim()
        try:
            mark = guard_run(self._sink, run.mark)
        except StoreReplacedError as replaced:  # a new run compares the store with the journal again
            log.warning("run %d ends: %s", run.token, replaced)
            claim, run = Claim.NEW, self._claim()
            mark = guard_run(self._sink, None)
        except FencedError:
            position = self._journal.ledger.position
            if claim is not Claim.TAKE or self._journal.load().position == position:
                raise
            return self.take()  # if a process of this query took the prefix, it had journaled its `run` before
        self._record(run, mark)
        return self._journal.ledger.runs[run.token], claim is not Claim.TAKE

    def claim(self, follows: int, at: int | None = None) -> RunRecord:
        """Journal a new run, and claim its prefix at the store. Raise if `follows` is no longer the newest run.

        If `at` is given, also raise if the journal has grown beyond this position.
        """
        run = self._claim(follows, at)
        self._record(run, guard_run(self._sink, run.mark))
        return run

    def _record(self, run: RunRecord, mark: RunMark) -> None:
        """Journal the value that `guardRun` returned, if it is new. Then check that the run is still the newest.

        The value is journaled even if the run has ended or is no longer the newest: the next run has to know which run
        claimed the prefix last.
        """

        def judge(ledger: Ledger) -> None:
            if run.token not in ledger.runs:  # the ledger no longer keeps this run
                raise superseded(run.token, ledger)

        if mark != run.mark:
            self._journal.append(entries.MarkTaken(run=run.token, mark=dict(mark)), judge)
        must_own(run.token)(self._journal.ledger)

    def _fence_own(self, run: RunRecord) -> None:
        newest = newest_run(self._journal.ledger)

        def judge(ledger: Ledger) -> None:
            if run.token not in ledger.runs or ledger.runs[run.token].ended:
                raise superseded(run.token, ledger)

        self._journal.append(entries.Fenced(run=run.token, by=newest.token), judge)
        raise superseded(run.token, self._journal.ledger)

    def _claim(self, follows: int | None = None, at: int | None = None) -> RunRecord:
        """Journal a new run before anything is recovered or aborted. If `follows` is given, that run must be the newest."""
        settings, view = self._settings, self._session.view
        identity = self._session.identify()
        self._check_unsettled(identity)
        position, former = self._journal.ledger.position, self._journal.ledger.newest_run
        seen, held = self._check_history(identity)
        fact = entries.RunClaimed(
            driver=settings.driver,
            settings=settings.digest,
            sink=settings.sink,
            location=view.location,
            prefix=settings.prefix,
            identity=identity,
            query_id=view.queryId,
            lifetime=lifetime_of(self._sink),
            process=dict(settings.process),
            setup=dict(settings.setup),
            retained=settings.retained,
            seen=seen,
            above=held,
        )

        def judge(ledger: Ledger) -> None:
            if at is not None:
                must_be_at(at)(ledger)
            if ledger.rewinding is not None:  # from R2 to R7, only the rewind owns the location
                raise rewinding(ledger)
            must_have_started_last(ledger, settings.driver, settings.started)
            check_location(ledger, view)
            check_account(ledger, view)
            if follows is not None and newest_run(ledger).token != follows:
                raise superseded(follows, ledger)
            if ledger.position != position and whose_run(ledger, settings.driver, settings.digest)[0] is Claim.FENCED:
                raise superseded(0, ledger)

        entry = self._journal.append(fact, judge)
        faults.reach("recovery.claimed")
        topics = sorted(frozenset[str]().union(*(line.topics for line in view.lines)))
        log.info(
            "run %d begins: query %s at %s%s; %s writes with the prefix %s",
            *(entry.number, view.queryId, view.location, f" reads {', '.join(topics)}" if topics else ""),
            *(settings.sink, settings.prefix),
        )
        gone = former.routes - {*routes_of(self._sink)} if former is not None else frozenset[str]()
        if gone:
            log.warning(
                "run %d no longer writes to %s, so it can't abort unfinished transactions of the previous run there: they stay "
                "open until the store's timeout, or forever if the store has none",
                *(entry.number, ", ".join(sorted(gone))),
            )
        self._sweep_former(entry.number)
        return self._journal.ledger.runs[entry.number]

    def _check_unsettled(self, identity: Mapping[str, str]) -> None:
        """Raise if the sink or the store has changed while the newest run has unsettled transactions."""
        ledger = self._journal.ledger
        former = ledger.newest_run
        if former is None or not (ledger.unsettled() or ledger.undecided()):
            return
        for what, before, now in (
            ("sink", former.sink, self._settings.sink),
            ("cluster", former.identity.get("cluster"), identity.get("cluster")),
        ):
            if before != now:
                raise LocationError("UNSETTLED_ELSEWHERE", what=what, before=before, now=now, run=former.token)
        moved = self._session.moved_target(identity)
        if moved is not None:
            raise LocationError("UNSETTLED_ELSEWHERE", what="target", before=moved[0], now=moved[1], run=former.token)

    def _check_history(self, identity: Mapping[str, str]) -> tuple[dict[str, Any], int]:
        """Check that neither the location nor the store is an older copy; see `compare_histories`.

        Return two values. The first is the state of the store, to be recorded with the run. The second is a lower limit: all
        new checkpoint ids must be higher. The limit is the store's newest checkpoint if an operator has accepted the store as
        it is, otherwise 0.
        """
        settings, view = self._settings, self._session.view
        try:
            asked = RunRecord(0, "", "", settings.sink, "", settings.prefix, dict(identity))
            history, seen = compare_histories(self._journal, self._sink, view.queryId, asked)
        except PutBackError as refused:
            if view.gaps:  # a batch write has no logs to adopt
                raise PutBackError("VERSIONS_PUT_BACK", **refused.parameters) from None
            raise
        return dict(seen), self._held(history)

    def _held(self, history: History) -> int:
        accepted = [route for route in routes_of(self._sink) if not history.routes.get(route, history).binding]
        return max((self._sink.newestCheckpoint(history.queryId, route) or 0 for route in accepted), default=0)

    def _sweep_former(self, token: int) -> None:
        """P7 of a new run: abort unfinished transactions under the query's old prefixes that no other query uses now."""
        ledger, settings = self._journal.ledger, self._settings
        former = {run.prefix: run for _, run in sorted(ledger.runs.items()) if run.sink == settings.sink}
        for prefix, run in former.items():
            if prefix == settings.prefix or prefix in ledger.originals or run.mark is None or self._under is None:
                continue  # the original of this copy may still commit what it prepared under its prefix
            sink = self._under(prefix)
            try:
                if run.mark:
                    guard_run(sink, run.mark)
                sink.sweep(ledger.known_handles(), self._session.cutoff(token))
            except (FencedError, StoreReplacedError) as taken:
                log.info("unfinished transactions under the old prefix %s are not aborted: %s", prefix, taken)
            finally:
                sink.close()
