"""Run the program ``barrier`` as ``python -m connector.cli``."""

from __future__ import annotations

import sys

from connector.cli import main

sys.exit(main())
