"""``barrier serve`` as a child process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from integration import ROOT

__all__ = ["Answer", "Served"]

SECONDS = 30


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: Message
    text: str


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection."""

    def redirect_request(self, *arguments: object) -> None:
        return None


class Served:
    """A running ``barrier serve``. A context manager: the process ends with it.

    Parameters
    ----------
    *arguments : str
        Of the command.
    environment : Mapping[str, str], optional
        The whole environment of the process.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "connector.cli", "serve", "--port", "0", *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        """As it printed it."""
        if not self.address:
            raise AssertionError(self._process.communicate()[1])

    def ask(self, path: str = "", method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
        """Ask for a page."""
        base = re.sub(r"\?.*", "", self.address).replace("0.0.0.0", "127.0.0.1")
        request = urllib.request.Request(base + path, method=method, headers=dict(headers or {}))
        try:
            with urllib.request.build_opener(Stay).open(request, timeout=SECONDS) as answer:
                return Answer(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as refused:
            return Answer(refused.code, refused.headers, refused.read().decode())

    def until(self, path: str, done: Callable[[str], bool]) -> str:
        """Ask again and again until a page is as awaited."""
        deadline = time.monotonic() + SECONDS
        while not done(text := self.ask(path).text):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return text

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return what is scraped: name and labels but that of the location → value."""
        return {
            (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "location")): sample.value
            for family in text_string_to_metric_families(self.ask("metrics").text)
            for sample in family.samples
        }

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.kill()
        self._process.communicate()
