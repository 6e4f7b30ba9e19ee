"""``make services``: a Kafka broker and a PostgreSQL server for the tutorial, until Ctrl-C."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys

from integration.broker import Cluster
from integration.postgresql import PASSWORD, USER, PostgresqlServer


def main() -> None:
    """Start both; print the line that names them to programs."""
    # A shell starts its background jobs with SIGINT ignored.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), Cluster() as cluster, PostgresqlServer() as server:
        address = server.address.replace("//", f"//{USER}@")
        line = f"BROKERS={cluster.bootstrap_servers} DATABASE={address} PGPASSWORD={shlex.quote(PASSWORD)}"
        print(f"export {line}", flush=True)
        print("Run this line in the other terminal. Ctrl-C ends both servers and deletes their data.", file=sys.stderr)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
