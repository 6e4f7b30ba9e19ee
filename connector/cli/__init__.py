"""The program ``barrier`` (also ``python -m connector.cli``), which shows a query's state and applies the remedies of errors.

`connector.cli.command_line.COMMANDS` lists the commands.

LOCATION is a query's ``checkpointLocation``. Only ``barrier restore --shuffle-partitions`` starts Spark. Commands that only
read can run beside a running query. A command with the option ``--yes`` first prints what it will do. If rows may be lost or
duplicated, it prints which. It then asks for confirmation, unless ``--yes`` was given.

With ``--output json`` (or ``--json``), standard output contains one JSON document, and text for people goes to standard
error. The document's ``status`` is ``done``, ``nothing to do``, ``dry run``, ``problems`` (of ``barrier doctor``),
``refused`` (then with ``condition`` and ``message``), ``wrong usage`` (with ``message``), ``not answered``, ``failed``,
``asked for`` or ``interrupted``.

The ``--help`` of each command lists the exit statuses (`connector.cli.report.MEANINGS`).
"""

from __future__ import annotations

from connector.cli.command_line import main

__all__ = ["main"]
