"""The command line ``barrier``, also ``python -m connector.cli``: look at a query's checkpoints, apply remedies of errors.

::

    barrier checkpoints list|show|trigger LOCATION
    barrier savepoint take LOCATION TARGET | list FOLDER | show SAVEPOINT | dispose SAVEPOINT
    barrier restore SAVEPOINT NEW_LOCATION --claim | --no-claim
    barrier transactions list|describe|explain|abort    who holds readers of a topic back
    barrier doctor [LOCATION]   check everything that a query needs, before it runs
    barrier stop LOCATION       end a query at its final checkpoint
    barrier recover LOCATION    before a start: leave nothing of a dead query open
    barrier rewind LOCATION --to CHECKPOINT    a stopped query goes back to an earlier checkpoint
    barrier adopt LOCATION      a moved, restored or copied location
    barrier resolve LOCATION    what can't be settled by evidence
    barrier import-offsets OLD NEW    a query with Spark's own Kafka source goes on with barrier-kafka

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
