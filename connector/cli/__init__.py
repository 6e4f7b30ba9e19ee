"""The command line ``barrier``, also ``python -m connector.cli``: look at a query, and apply the remedies of errors.

`connector.cli.command_line.COMMANDS` has the commands.

LOCATION is a query's ``checkpointLocation``. Nothing here starts a JVM; what only reads works beside a running query. A
command that changes something prints what it will do, and what may be lost or doubled, and asks, unless ``--yes`` was given.

With ``--output json``, or ``--json``, standard output holds one JSON document, whose ``status`` is ``done``,
``nothing to do``, ``dry run``, ``refused`` (then with ``condition`` and ``message``), ``wrong usage`` (with ``message``),
``not answered``, ``failed``, ``asked for`` or ``interrupted``; sentences go to standard error.

Each ``--help`` lists the exit statuses (`connector.cli.report.MEANINGS`).
"""

from __future__ import annotations

from connector.cli.command_line import main

__all__ = ["main"]
