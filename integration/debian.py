"""Programs of Debian's packages for tests: unpacked below the cache folder, without root. Nothing is installed.

A package is unpacked once, together with what it depends on and this machine lacks. apt's own lists are not touched: a copy of
them is fetched into the cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from integration.jars import cache_folder, kept_folder

__all__ = ["UNPACK_SECONDS", "UnpackedPackage", "is_debian", "unpacked"]

UNPACK_SECONDS = 300.0
"""Of each call of apt. All of Chromium takes 20 s."""


class UnpackedPackage:
    """A package and what it needs, below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root  # Its ``usr/bin`` and the like are below this.

    def program(self, path: str) -> str:
        """Return the path of a program that the package holds at ``usr/...``."""
        found = self.root / path
        assert found.is_file(), found
        return str(found)

    def environment(self) -> dict[str, str]:
        """Return the environment in which its programs find their libraries."""
        folders = sorted({str(library.parent) for library in self.root.glob("**/*.so*")})
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def is_debian() -> bool:
    """Return whether this machine has apt and dpkg."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None


def unpacked(package: str) -> UnpackedPackage:
    """Return a package, after fetching it if it is not in the cache folder yet.

    Raises
    ------
    subprocess.CalledProcessError
        apt can't reach its archives, or knows no such package.
    """
    return UnpackedPackage(kept_folder(f"debian-{package}", lambda root: _fetch(package, root)))


def _fetch(package: str, root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".apt-") as work:
        for folder in ("lists/partial", "archives/partial"):
            (Path(work) / folder).mkdir(parents=True)
        apt = [
            *("apt-get", "--quiet", "--yes", "--no-install-recommends", "-o", f"Dir::State::lists={work}/lists"),
            *("-o", f"Dir::Cache={work}", "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User="),
        ]
        plain = _plain(os.environ)
        for words in (["update"], ["install", "--download-only", "--reinstall", package]):
            subprocess.run([*apt, *words], check=True, capture_output=True, timeout=UNPACK_SECONDS, env=plain)
        for archive in sorted((Path(work) / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(archive), str(root)], check=True, timeout=UNPACK_SECONDS)


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
