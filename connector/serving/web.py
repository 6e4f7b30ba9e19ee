"""The web page: an application that answers only GET requests, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from connector.serving.access import Access
from connector.serving.facts import ClusterFacts, QueryFacts
from connector.serving.series import series_of
from connector.serving.watcher import Watcher
from connector.transactions.assessment import Assessment
from connector.views.queries import FAILURES, QueryState, checkpoint_pairs, query_pairs
from connector.views.transactions import alike_of, columns_of, held_sentences
from connector.views.words import batches_text, duration_text, status_text, time_text
from transactional.ledger import RunRecord
from transactional.secrets import HIDDEN, is_secret
from transactional.stats import CheckpointHistory, Pending, counts, history, newest_completed, pending

if TYPE_CHECKING:
    from starlette.requests import Request

PAGES = Path(__file__).with_name("pages")
BEAT_SECONDS = 15.0
"""An event stream sends a comment after this many seconds without an event, so that no proxy closes it."""

LOOK_SECONDS = 0.5
"""The number of seconds between two checks whether the facts have changed."""

SHOWN_CHECKPOINTS = 100
REWOUND = {False: "Started", True: "Rewound, and started"}
WELL = (QueryState.EMPTY, QueryState.RUNNING, QueryState.STOPPED, QueryState.STOPPING, QueryState.MOVED)
"""The states in which no one has to act. `UNSEEN` is not one of them, because no one can see whether the driver runs."""


def application(
    watcher: Watcher, token: str = "", *, metrics: bool = True, is_over: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the web application; its event streams end when `is_over` returns True."""
    page = Page(watcher, metrics=metrics, is_over=is_over)
    routes = [
        Route("/", page.overview),
        Route("/queries/{number}", page.query, name="query"),
        Route("/queries/{number}/series", page.series),
        Route("/queries/{number}/checkpoints/{id}", page.checkpoint, name="checkpoint"),
        Route("/transactions", page.transactions),
        Route("/events", page.events),
        Route("/health", page.health),
        *([Route("/metrics", page.metrics)] if metrics else []),
        Mount("/static", StaticFiles(directory=PAGES / "static")),
    ]
    return Starlette(
        routes=routes, middleware=[Middleware(Access, token=token)], exception_handlers={HTTPException: page.missing}
    )


class Page:
    """The handlers of requests to the page.

    Parameters
    ----------
    watcher : Watcher
        The source of the facts to show.
    metrics : bool
        True to serve ``/metrics``.
    is_over : Callable[[], bool]
        Returns True when the server is ending; event streams then end as well.
    """

    def __init__(self, watcher: Watcher, *, metrics: bool, is_over: Callable[[], bool]) -> None:
        self._watcher, self._is_over = watcher, is_over
        self._pages = Environment(
            loader=PackageLoader("connector.serving", "pages"), autoescape=True, undefined=StrictUndefined
        )
        self._pages.filters.update(
            time=time_text,
            duration=duration_text,
            batches=batches_text,
            age=age_text,
            number=lambda value: f"{value:,}",
        )
        try:
            version = metadata.version("barrier-kafka")
        except metadata.PackageNotFoundError:
            version = ""
        self._pages.globals.update(has_metrics=metrics, release=version)
        self._registry: Any = _registry(watcher) if metrics else None

    def overview(self, request: Request) -> Response:
        """Answer with a table of all queries."""
        now = time.time()
        rows = [self._row(number, each, now) for number, each in enumerate(self._watcher.queries)]
        return self._answer("overview.html", title="Queries", rows=rows, clusters=self._watcher.clusters)

    def _row(self, number: int, query: QueryFacts, now: float) -> dict[str, Any]:
        last = newest_completed(query.ledger)
        return {
            "number": number,
            "query": query,
            "tone": _tone(query),
            "last": last,
            "ago": None if last is None else max(0.0, now - (last.committed or 0) / 1000),
            "pending": _pending(query, self._watcher.clusters, now),
            "counts": counts(query.ledger),
            "lag": self._watcher.lag(query.path),
            "held": [held for cluster in self._watcher.clusters for held in _held_by(cluster, query)],
            "commands": _commands(query, self._watcher.clusters),
        }

    def query(self, request: Request) -> Response:
        """Answer with one query: its state, charts, checkpoints, failures and configuration."""
        number, query = self._query(request)
        found = history(query.ledger)
        run = query.ledger.newest_run
        opened = _assessments(self._watcher.clusters, query)
        return self._answer(
            "query.html",
            title=query.path,
            number=number,
            query=query,
            tone=_tone(query),
            done=_done(query),
            pairs=query_pairs(query.path, query.ledger, time.time(), query.alive, query.doing),
            lag=self._watcher.lag(query.path),
            opened=len(opened),
            commands=_commands(query, self._watcher.clusters),
            checkpoints=[_line(each) for each in reversed(found)][:SHOWN_CHECKPOINTS],
            incidents=_incidents(query, found),
            options=_options(run) if run else [],
            sink=run.sink if run else "",
        )

    def series(self, request: Request) -> Response:
        """Answer with the numbers of a query's charts, as JSON."""
        _, query = self._query(request)
        return JSONResponse(series_of(history(query.ledger), query.ledger.restarts, self._watcher.lags(query.path)))

    def checkpoint(self, request: Request) -> Response:
        """Answer with one checkpoint: its micro-batches and parts, and how long each step took."""
        number, query = self._query(request)
        found = next((each for each in history(query.ledger) if str(each.id) == request.path_params["id"]), None)
        if found is None:
            raise HTTPException(404, "The journal does not keep this checkpoint.")
        records = [query.ledger.batches[batch] for batch in found.batches if batch in query.ledger.batches]
        return self._answer(
            "checkpoint.html",
            title=f"Checkpoint {found.id}",
            number=number,
            query=query,
            found=found,
            status=status_text(found),
            failed=found.status in FAILURES,
            pairs=checkpoint_pairs(found),
            records=records,
            parts=[part for record in records for part in record.parts],
        )

    def transactions(self, request: Request) -> Response:
        """Answer with the open transactions of all clusters."""
        now = time.time() * 1000
        clusters = [
            {
                "facts": each,
                "groups": [self._group(alike, now) for alike in alike_of(each.assessments)],
                "held": held_sentences(each.view.held, each.groups),
            }
            for each in self._watcher.clusters
        ]
        return self._answer(
            "transactions.html", title="Transactions", clusters=clusters, has_asked=self._watcher.has_asked
        )

    def health(self, request: Request) -> Response:
        """Answer ``ok`` while the server runs, even if queries have failed."""
        return PlainTextResponse("ok\n")

    def metrics(self, request: Request) -> Response:
        """Answer with the metrics, in the format that the scraper asks for."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), media_type=kind)

    async def events(self, request: Request) -> Response:
        """Answer with a stream that has an event for each change of the facts, until the client disconnects."""

        async def news() -> AsyncIterator[str]:
            version, said = self._watcher.version, time.monotonic()
            yield f"retry: 3000\ndata: {version}\n\n"
            while not (self._is_over() or await request.is_disconnected()):
                await anyio.sleep(LOOK_SECONDS)  # no thread per client: pages need the threads
                if self._watcher.version != version:
                    version, said = self._watcher.version, time.monotonic()
                    yield f"data: {version}\n\n"
                elif time.monotonic() - said > BEAT_SECONDS:
                    said = time.monotonic()
                    yield ": nothing new\n\n"

        return StreamingResponse(news(), media_type="text/event-stream")

    async def missing(self, request: Request, error: Exception) -> Response:
        """Answer an HTTP error, such as a missing page, with a page that explains the error."""
        code, sentence = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
        return self._answer("missing.html", code, title="Not found", sentence=sentence)

    def _query(self, request: Request) -> tuple[int, QueryFacts]:
        for number, query in enumerate(self._watcher.queries):
            if str(number) == request.path_params["number"]:
                return number, query
        raise HTTPException(404, "There is no query with this number.")

    def _group(self, alike: Sequence[Assessment], now: float) -> dict[str, Any]:
        """Return a group of transactions with the same verdict: the common text once, and a row for each."""
        first = alike[0]
        place = None if first.owner is None else first.owner.location
        numbers = [number for number, each in enumerate(self._watcher.queries) if each.path == place]
        rows = [(one.transaction.shown_name, columns_of(one, now)) for one in alike]
        return {
            "verdict": first.verdict.value,
            "reason": first.reason,
            "advice": first.advice,
            "command": first.command,
            "number": numbers[0] if place is not None and numbers else None,
            "location": place,
            "heads": list(rows[0][1]),
            "rows": [(name, list(columns.values())) for name, columns in rows],
        }

    def _answer(self, name: str, code: int = 200, /, **facts: Any) -> HTMLResponse:
        return HTMLResponse(self._pages.get_template(name).render(**facts), code)


def age_text(seconds: float | None) -> str:
    """Format an age in seconds with the largest unit that fits; return a dash for None."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _line(found: CheckpointHistory) -> dict[str, Any]:
    return {
        "found": found,
        "status": status_text(found, brief=True),
        "failed": found.status in FAILURES,
        "why": found.sentence or found.reason,
    }


def _incidents(query: QueryFacts, found: Sequence[CheckpointHistory]) -> list[tuple[int, str]]:
    """Return each failure and restart as a time (milliseconds since 1970) and a sentence, the newest first."""
    said = [
        (
            each.time,
            f"Checkpoint {each.id} was {each.status.value}: {each.sentence or each.reason} {each.detail}".strip(),
        )
        for each in found
        if each.status in FAILURES
    ]
    said += [
        (
            each.time,
            f"{REWOUND[each.rewound]} again by {each.by} (restart {each.number}), after {each.delay:g} s: {each.reason}",
        )
        for each in query.ledger.restarts
    ]
    return sorted(said, reverse=True)


def _options(run: RunRecord) -> list[tuple[str, str]]:
    """Return the sink's options from the journal. Hide secrets: a journal contains none, unless it was forged."""
    recorded = sorted(dict(run.setup.get("options", {})).items())
    return [(key, HIDDEN if is_secret(key, value) or "authorization" in key else value) for key, value in recorded]


def _tone(query: QueryFacts) -> str:
    """Return the CSS class for a query's state. A query whose driver is gone is ``well`` only after its final checkpoint."""
    if query.state is QueryState.UNSEEN or not query.looked:
        return "unseen"
    return "well" if query.state in WELL or query.finished else "problem"


def _done(query: QueryFacts) -> list[tuple[str, int]]:
    """Return the numbers of parts that were written again, and of rewinds, each with its name. Leave out zeros."""
    totals = query.ledger.totals
    found = [("parts written again", totals.get("repaired", 0)), ("rewinds", totals.get("rewound", 0))]
    return [(what, number) for what, number in found if number]


def _commands(query: QueryFacts, clusters: Sequence[ClusterFacts]) -> list[str]:
    """Return the commands that end a query's open transactions; none unless the query's driver is known to be gone.

    Commands with ``--query-stopped`` are left out: they are not safe if a driver is running after all.
    """
    if query.alive is not False:
        return []
    found = [one.command for one in _assessments(clusters, query)]
    return [command for command in dict.fromkeys(found) if command and "--query-stopped" not in command]


def _held_by(cluster: ClusterFacts, query: QueryFacts) -> list[str]:
    opened = {place for one in _assessments([cluster], query) for place in one.transaction.opened}
    return [str(held.partition) for held in cluster.view.held if held.partition in opened]


def _assessments(clusters: Sequence[ClusterFacts], query: QueryFacts) -> list[Assessment]:
    """Return the assessments of the query's open transactions in the clusters."""
    found = [one for cluster in clusters for one in cluster.assessments]
    return [one for one in found if one.owner is not None and one.owner.location == query.path]


def _pending(query: QueryFacts, clusters: Sequence[ClusterFacts], now: float) -> Pending:
    """Return what is pending; the oldest open transaction is the oldest of the journal's and the brokers'.

    The journal does not know the transactions of tasks that were killed before their micro-batch was prepared.
    """
    found = pending(query.ledger, now)
    open_now = [one.transaction for one in _assessments(clusters, query) if one.transaction.started_ms]
    if not open_now:
        return found
    oldest = min(open_now, key=lambda each: each.started_ms)
    age = max(0.0, now - oldest.started_ms / 1000)
    if found.oldest_age is not None and found.oldest_age >= age:
        return found
    return replace(found, oldest_age=age, lifetime=oldest.timeout_ms / 1000 or None)


def _registry(watcher: Watcher) -> Any:
    from prometheus_client import CollectorRegistry

    from connector.serving.metrics import QueryCollector

    registry = CollectorRegistry()
    registry.register(QueryCollector(lambda: watcher.queries, lambda: watcher.clusters))
    return registry
