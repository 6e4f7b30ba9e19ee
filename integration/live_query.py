"""A job's query in the tests' own session: started, watched, stopped, started again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integration.driver_process import DEADLINE, FolderOutput, Output, Place, wait_until
from integration.jobs import Job, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["LiveQuery"]


class LiveQuery:
    """One place in whose checkpoint location queries run one after the other.

    Parameters
    ----------
    session : SparkSession
    folder : Path
        For the location and the output of the file sink.
    job : Job, optional
    output : Output, optional
        The file sink's folder by default.
    """

    def __init__(
        self, session: SparkSession, folder: Path, job: Job | None = None, output: Output | None = None
    ) -> None:
        job = job or Job("", "")
        self.job = replace(
            job, location=job.location or str(folder / "checkpoint"), output=job.output or str(folder / "output")
        )
        self.place = Place(Path(self.job.location), output or FolderOutput(Path(self.job.output)))
        self._session = session
        self._query: StreamingQuery | None = None

    @property
    def expected(self) -> int:
        """Rows in the end: their values are 0 to this, exclusive."""
        return self.job.batches * self.job.rows

    @property
    def query(self) -> StreamingQuery:
        """The newest query."""
        assert self._query is not None, "no query was started"
        return self._query

    def start(self, **changed: Any) -> LiveQuery:
        """Start the query."""
        self._query = start(self._session, replace(self.job, **changed))
        return self

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds, while the query runs."""
        wait_until(condition, what, alive=self._why_dead)

    def wait_committed(self, batch: int, deadline: float = DEADLINE) -> None:
        """Wait until Spark has committed the micro-batch."""
        wait_until(lambda: self.place.committed() >= batch, f"commits/{batch}", deadline, self._why_dead)

    def wait_failed(self, deadline: float = DEADLINE) -> str:
        """Wait until the query has failed; returns its error."""
        wait_until(lambda: not self.query.isActive, "failure of the query", deadline)
        problem = self.query.exception()
        assert problem is not None, "the query ended without an error"
        return str(problem)

    def stop(self) -> None:
        """Stop the newest query, if any."""
        if self._query is not None:
            self._query.stop()

    def finish(self, restarts: int = 0, between: Callable[[], None] = lambda: None, **changed: Any) -> list[str]:
        """Run the job to its end, starting it again up to `restarts` times, and check everything; returns the errors.

        `between` is called after each failure, while nothing runs.
        """
        errors: list[str] = []
        while True:
            self.start(**changed)
            wait_until(
                lambda: self.place.committed() >= self.job.batches - 1 or not self.query.isActive,
                "end of the job",
                DEADLINE,
            )
            problem = self.query.exception()
            self.place.check_partial(self.expected)
            if problem is None:
                break
            errors.append(str(problem))
            assert len(errors) <= restarts, f"the query keeps failing: {errors[-1]}"
            between()
        self.query.stop()
        self.place.check_whole(self.expected)
        return errors

    def _why_dead(self) -> str | None:
        return None if self.query.isActive else f"the query ended: {self.query.exception()}"

    def __enter__(self) -> LiveQuery:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()
