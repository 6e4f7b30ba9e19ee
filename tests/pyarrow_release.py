"""The release of pyarrow that the tests run with."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["MAJOR", "SLICES_VIEWS"]

MAJOR = int(pa.__version__.split(".")[0])

SLICES_VIEWS = MAJOR >= 24
"""True if byte ranges of string views can be read. Spark makes no string views."""
