"""A driver whose query is supervised: ``python -m integration.supervised``, with the arguments of `integration.jobs`.

It ends when it is stopped, and starts its query again as the environment says (`connector.operations.restart_options`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from connector.operations.supervised_query import supervise
from integration.jobs import build_session, parse, start

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run until it is stopped."""
    job = parse(arguments)
    supervise(lambda: start(build_session(job), job))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
