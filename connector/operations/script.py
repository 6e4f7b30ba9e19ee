"""Runs a user's script as Python does, and reports the error that ends it: ``python -m connector.operations.script``."""

from __future__ import annotations

import os
import runpy
import sys

from connector.spark.life_report import tell_failure

__all__ = ["main"]


def main() -> None:
    """Run the script that ``sys.argv`` names after this module; the script's ``sys.argv`` is its own."""
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as problem:
        tell_failure("script", problem)
        raise


if __name__ == "__main__":
    main()
