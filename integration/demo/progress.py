"""What the demo shows while it runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["ProgressBoard"]

LINE_SECONDS = 10.0
"""Between two lines where there is no terminal."""


class ProgressBoard:
    """Rows committed, of how many, and the kills so far. A context manager."""

    def __init__(self, console: Console, title: str, expected: int) -> None:
        self._console = console
        self._title = title
        self._expected = expected  # Rows.
        self._kills = 0
        self._last = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows committed, kills: {task.fields[kills]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=expected, kills=0)

    def __enter__(self) -> ProgressBoard:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def rows(self, committed: int) -> None:
        """Show how many rows a reader can see."""
        self._progress.update(self._task, completed=committed)
        if not self._console.is_terminal and time.monotonic() - self._last > LINE_SECONDS:
            self._last = time.monotonic()
            self._say(f"{self._title}: {committed:,} of {self._expected:,} rows committed, kills: {self._kills}")

    def kill(self, what: str) -> None:
        """Show a kill."""
        self._kills += 1
        self._progress.update(self._task, kills=self._kills)
        self._say(f"kill -9: {what}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
