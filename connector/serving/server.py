"""Open the socket on which the page's server listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from transactional.errors import OptionError


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens on an address. If the address can't be used, raise `OptionError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, port), family=family)
    except OSError as problem:
        raise OptionError(
            "INVALID_OPTION",
            owner="barrier serve",
            option="--host and --port",
            value=f"{host}:{port}",
            expectation=f"an address of this machine with a free port ({problem.strerror or problem})",
        ) from problem
    with found:
        yield found
