"""``barrier serve``: serve a read-only web page about queries, and their metrics."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import typer

from connector.cli.arguments import Servers
from connector.cli.report import Report
from connector.spark import recorded_options
from transactional.errors import OptionError

TOKEN = "BARRIER_SERVE_TOKEN"


class _Once(logging.Filter):
    """A log filter that lets each message pass only once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record's message is new."""
        said = record.getMessage()
        new = said not in self._seen
        self._seen.add(said)
        return new


def serve(
    report: Report,
    location: Annotated[
        list[str],
        typer.Argument(
            metavar="LOCATION...", help="The checkpointLocations of the queries to show.", show_default=False
        ),
    ],
    given: Mapping[str, str],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on. 0 means any free port.")] = 8400,
    bootstrap_server: Servers = None,
    brokers: Annotated[
        bool, typer.Option(help="Ask the Kafka brokers for open transactions, lag and blocked consumers.")
    ] = True,
    metrics: Annotated[bool, typer.Option(help="Serve /metrics for Prometheus.")] = True,
) -> None:
    """To watch queries, running or stopped: serve a read-only web page and metrics for Prometheus.

    The page shows checkpoints, failures, open transactions and configuration, and changes nothing.

    If other machines can reach the address, the page requires a token. The command uses the token in the environment variable
    BARRIER_SERVE_TOKEN, or creates and prints one. The command needs the extra `serve`: pip install 'barrier-kafka[serve]'.
    """
    try:
        import uvicorn

        from connector.serving.access import is_loopback
        from connector.serving.server import listening
        from connector.serving.watcher import Watcher
        from connector.serving.web import application
    except ModuleNotFoundError as missing:
        raise OptionError("MISSING_PACKAGE", owner="barrier serve", package="barrier-kafka[serve]") from missing
    token = os.environ.get(TOKEN, "")
    if not token.isascii():
        raise OptionError(
            "INVALID_OPTION", owner="barrier serve", option=TOKEN, value="(hidden)", expectation="ASCII characters only"
        )
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    logging.getLogger(recorded_options.__name__).addFilter(_Once())  # otherwise each update would log the same warning
    with listening(host, port) as socket, Watcher(location, bootstrap_server, given, brokers=brokers) as watcher:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{socket.getsockname()[1]}/"
        report.say(f"{address}{f'?token={quote(token)}' if token else ''}")
        served = application(watcher, token, metrics=metrics, is_over=lambda: server.should_exit)
        server = uvicorn.Server(uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=2))
        server.run(sockets=[socket])
