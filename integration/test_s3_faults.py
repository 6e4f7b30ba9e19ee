"""A store that is busy, slow, answers twice or not at all, at any request: an error names the file, or all rows are right."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from connector.location import object_store
from connector.location.location import CheckpointLocation
from connector.location.offset_log import newest
from connector.savepoints.manifest import MANIFEST, read
from connector.savepoints.take import take
from connector.spark.host import data_source_for
from integration.engine import Engine, Work
from integration.file_sink import FileSink, committed_rows, pending_files
from integration.object_store import BUCKET, LATE_SECONDS, AnswerProxy, ObjectStoreServer
from transactional.errors import TwoPhaseCommitError
from transactional.journal import Journal

TROUBLES = ("busy", "busy for good", "lose", "fail", "twice", "late", "slow", "refuse")
"""What becomes of a request: see `AnswerProxy`. ``busy for good`` lasts until the driver has given up."""
BATCHES = 4
SEEDS = 2
"""Lives of `make test` in which a fifth of all requests have a trouble; `make matrix` has each trouble at each request."""
Site = tuple[str, str]


class RemoteEngine(Engine):
    """Writes Spark's logs into the store directly: whatever befalls the product's requests, these are done."""

    direct: CheckpointLocation

    def _newest(self, log: str) -> int:
        return newest(self.direct, log)

    def _begun(self) -> bool:
        return self.direct.files.exists("metadata")

    def _read(self, name: str) -> str:
        return self.direct.files.read(name).decode()

    def _write(self, name: str, text: str) -> None:
        self.direct.files.put(name, text.encode())


class Life:
    """A query whose location is in the store, and whose sink is a folder."""

    def __init__(self, server: ObjectStoreServer, proxy: AnswerProxy, output: Path, name: str) -> None:
        data_source_for(FileSink)
        self.proxy, self.output = proxy, output
        self.location = f"s3://{BUCKET}/{name}"
        self.direct = CheckpointLocation(self.location, {"endpoint": server.endpoint})
        options = {"path": str(output), "transactionalIdPrefix": "p", "commitTimeoutMs": "1"}
        self.work = Work(self.location, options, batches=BATCHES, rows=6, writers=2, format=FileSink.name())

    def run(self) -> None:
        engine = RemoteEngine(self.work)
        engine.direct = self.direct
        engine.run(error=True)

    def run_on(self) -> list[TwoPhaseCommitError]:
        """Start it until it has come to its end; return the errors of its lives."""
        errors: list[TwoPhaseCommitError] = []
        while len(errors) < BATCHES + 3 and (error := self.failure()) is not None:
            errors.append(error)
            self.proxy.calm()
        return errors

    def failure(self) -> TwoPhaseCommitError | None:
        """Start it once; return the error that has ended it."""
        try:
            self.run()
        except TwoPhaseCommitError as error:
            return error
        return None

    def judge(self) -> None:
        values = Counter(int(row["value"]) for row in committed_rows(self.output))
        assert values == Counter(range(self.work.expected))
        assert not pending_files(self.output)
        ledger = self.direct.journal().load()
        assert not ledger.unsettled()
        assert not ledger.undecided()


def site_of(method: str, path: str) -> Site:
    """Return a request without what differs from life to life."""
    name, _, query = unquote(path).partition("?")
    listed = re.search(r"prefix=([^&]*)", query)
    name = re.sub(rf"^(/{BUCKET})?/?life[^/]*", "", f"{listed[1]}?list" if listed else name)
    return method, re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+", "N", name)


@pytest.fixture
def quick(s3: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnswerProxy]:
    """Stands before the store; the product's clients come through it, and give up soon. Snapshots come soon."""

    @cache
    def client(url: str, options: tuple[tuple[str, str], ...]) -> Any:
        from obstore.store import S3Store

        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        given: Mapping[str, Any] = {"endpoint": proxy.endpoint, **dict(options)}
        backoff: Any = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)}
        return S3Store(
            bucket,
            prefix=prefix,
            config={"endpoint": given["endpoint"], "region": "us-east-1"},
            client_options={"allow_http": True, "timeout": timedelta(seconds=LATE_SECONDS / 2)},
            retry_config={"max_retries": 3, "backoff": backoff, "retry_timeout": timedelta(seconds=5)},
        )

    monkeypatch.setattr(Journal.fold, "__defaults__", (3,))
    with AnswerProxy(s3) as proxy:
        monkeypatch.setattr(object_store, "_client", client)
        yield proxy


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_query_survives_a_store_that_has_a_trouble_with_every_fifth_request(
    s3: ObjectStoreServer, quick: AnswerProxy, tmp_path: Path, seed: int
) -> None:
    life, chance = Life(s3, quick, tmp_path, f"life-{seed}"), random.Random(seed)
    met = Counter[str]()

    def trouble(method: str, path: str) -> str:
        what = chance.choice(TROUBLES) if chance.random() < 0.2 else ""
        met[what] += 1
        return what.removesuffix(" for good")

    quick.trouble = trouble
    for _ in range(BATCHES + 3):
        if life.failure() is None:
            break
    quick.calm()
    life.run_on()
    life.judge()
    assert sum(met.values()) - met[""] > 8, met


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", TROUBLES)
def test_each_trouble_at_each_kind_of_request_costs_no_row(
    s3: ObjectStoreServer, quick: AnswerProxy, tmp_path: Path, what: str
) -> None:
    """Each kind of request of a life: its first, and one in the middle."""
    sites = Counter[Site]()

    def count(method: str, path: str) -> str:
        sites[site_of(method, path)] += 1
        return ""

    life = Life(s3, quick, tmp_path / "first", f"life-{what.replace(' ', '-')}")
    quick.trouble = count
    life.run()
    life.judge()
    moments = [(site, nth) for site, times in sorted(sites.items()) for nth in sorted({0, times // 2})]
    for number, (site, nth) in enumerate(moments):
        life = Life(s3, quick, tmp_path / str(number), f"life-{what.replace(' ', '-')}-{number}")
        left = [nth]

        def trouble(method: str, path: str, site: Site = site, left: list[int] = left) -> str:
            if site_of(method, path) != site:
                return ""
            left[0] -= 1
            return what.removesuffix(" for good") if left[0] == -1 or (left[0] < 0 and "for good" in what) else ""

        quick.trouble = trouble
        errors = life.run_on()
        assert left[0] < 0, f"{site} was not reached"
        for error in errors:
            assert life.location in str(error) or "barrier/log" in str(error) or ".json" in str(error), (site, error)
        quick.calm()
        life.judge()


@pytest.mark.parametrize("what", ["lose", "fail", "twice"])
def test_a_savepoint_whose_manifest_was_created_without_an_answer_is_taken(
    s3: ObjectStoreServer, quick: AnswerProxy, tmp_path: Path, what: str
) -> None:
    life = Life(s3, quick, tmp_path, f"life-saved-{what}")
    life.run()
    left = [what]
    quick.trouble = lambda method, path: left.pop() if left and method == "PUT" and path.endswith(MANIFEST) else ""
    saved = take(life.location, f"{life.location}-savepoint")
    assert not left
    read(saved.path).verify()
