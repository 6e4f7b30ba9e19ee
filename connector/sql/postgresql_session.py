"""A connection to PostgreSQL whose COMMIT ends."""

from __future__ import annotations

import os
import socket
from threading import Timer
from typing import Any

import psycopg

__all__ = ["Session"]


class Session(psycopg.Connection[Any]):
    """A connection. No timeout of the server's holds for a COMMIT that waits for a synchronous stand-by.

    It is not canceled either, as the server then answers that it has committed: the connection is cut, and the outcome is
    looked up later, as after a failure of the network.
    """

    commit_seconds: float = 120

    def commit(self) -> None:
        """Commit."""
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
                "the server did not answer COMMIT: it may wait for a synchronous stand-by (synchronous_standby_names)"
            )
            raise psycopg.errors.QueryCanceled(reason) from problem
        finally:
            timer.cancel()
            timer.join()
            end.close()
