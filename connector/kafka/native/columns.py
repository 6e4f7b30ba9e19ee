"""The compiled helper, which copies librdkafka's rows into Arrow columns. It is optional; see ``columns.c``."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from ctypes import c_int, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger(__name__)

_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "scan": (c_int64, (c_void_p, c_int64, c_void_p, c_void_p)),
    "sizes": (None, (c_void_p, c_int64, c_void_p, c_void_p)),
    "bytes": (c_int64, (c_void_p, c_int64, c_int, c_void_p, c_void_p, c_void_p)),
    "times": (None, (c_void_p, c_int64, c_void_p, c_void_p, c_void_p)),
    "header_sizes": (c_int64, (c_void_p, c_int64, *([c_void_p] * 5))),
    "headers": (c_int64, (c_void_p, c_int64, *([c_void_p] * 7))),
    "destroy": (None, (c_void_p, c_int64, c_void_p)),
}
"""The result type and the argument types of each function, as in ``columns.c``; names are without ``columns_``."""


class Columns:
    """The functions of the compiled helper, as attributes. Each call releases the interpreter lock."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"columns_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"columns_{name} is not declared here")


@lru_cache(maxsize=1)
def native_columns() -> Columns | None:
    """Return the compiled helper; None if it was not compiled during installation, or can't be loaded."""
    path = next(iter(sorted(Path(__file__).parent.glob("_columns*.so"))), None)
    problem: object = "no C compiler was present during installation"
    if path is not None:
        try:
            return Columns(str(path))
        except (OSError, AttributeError) as error:
            problem = error
    _log.info("Rows are read through confluent-kafka's objects, which is slower: %s.", problem)
    return None
