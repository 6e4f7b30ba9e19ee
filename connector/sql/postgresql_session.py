"""A connection to PostgreSQL whose COMMIT never waits forever."""

from __future__ import annotations

import os
import socket
from threading import Timer
from typing import Any

import psycopg


class Session(psycopg.Connection[Any]):
    """A connection that waits at most `commit_seconds` for a COMMIT.

    The server has no timeout for a COMMIT that waits for a synchronous standby. If the client canceled the COMMIT, the
    server would stop waiting and report success. So this class cuts the connection instead. The next run looks up the
    outcome, as after a network failure.
    """

    commit_seconds: float = 120

    def commit(self) -> None:
        """Commit. If the server does not answer within `commit_seconds`, cut the connection and raise `QueryCanceled`."""
        end = socket.socket(fileno=os.dup(self.fileno()))
        late: list[bool] = []

        def cut() -> None:
            late.append(True)
            end.shutdown(socket.SHUT_RDWR)

        timer = Timer(self.commit_seconds, cut)
        timer.start()
        try:
            super().commit()
        except psycopg.OperationalError as problem:
            if not late:
                raise
            reason = (
                "the server did not answer COMMIT: it may wait for a synchronous standby (synchronous_standby_names)"
            )
            raise psycopg.errors.QueryCanceled(reason) from problem
        finally:
            timer.cancel()
            timer.join()
            end.close()
