"""Functions for the URLs of checkpoint locations in HDFS and in object stores."""

from __future__ import annotations

import re
from collections.abc import Container


def split_url(location: str, schemes: Container[str]) -> tuple[str, str, list[str]] | None:
    """Return a URL's scheme in lower case, its authority, and the parts of its path; None if its scheme is not in `schemes`.

    If the URL has no ``//``, or has ``.`` or ``..`` in its path, it does not name a folder, and the returned authority
    is empty. As in Hadoop, nothing is decoded.
    """
    scheme, colon, rest = location.partition(":")
    scheme = scheme.lower()
    if not colon or scheme not in schemes:
        return None
    authority, _, path = rest.removeprefix("//").partition("/")
    parts = [part for part in path.split("/") if part]
    if not rest.startswith("//") or any(part in (".", "..") for part in parts):
        authority = ""
    return scheme, authority, parts


def told_error(error: Exception) -> str:
    """Return the first line of a store's error, without URLs' query strings, which may contain a signature (Azure)."""
    first = str(error).partition("\n")[0].partition(": <?xml")[0]
    return re.sub(r"\?\S+", "?...", first)[:300]
