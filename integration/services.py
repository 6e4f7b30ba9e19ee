"""``make services``: a Kafka broker and a PostgreSQL server for the tutorial, until Ctrl-C."""

from __future__ import annotations

import shlex
import sys

from integration.broker import Cluster
from integration.postgresql import PASSWORD, USER, PostgresqlServer
from integration.session import until_interrupted

__all__ = ["variables"]


def variables(cluster: Cluster, server: PostgresqlServer) -> dict[str, str]:
    """Return the environment variables from which the tutorial's programs take the addresses and the password."""
    return {
        "BROKERS": cluster.bootstrap_servers,
        "DATABASE": server.address.replace("//", f"//{USER}@"),
        "PGPASSWORD": PASSWORD,
    }


def main() -> None:
    """Start both; print the line that names them to programs."""
    with until_interrupted() as wait, Cluster() as cluster, PostgresqlServer() as server:
        words = [f"{name}={shlex.quote(value)}" for name, value in variables(cluster, server).items()]
        print(f"export {' '.join(words)}", flush=True)
        print("Run this line in the other terminal. Ctrl-C ends both servers and deletes their data.", file=sys.stderr)
        wait()


if __name__ == "__main__":
    main()
