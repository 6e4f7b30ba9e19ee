"""The catalogue of error conditions, like Spark's ``error-conditions.json``.

A package keeps its conditions in a file ``conditions.json``. A condition has

sqlState
    Five characters. The first two are a class of the SQL standard, such as 40 (rolled back) or 55 (not in the required state).
action
    How a supervisor responds to the error: one of `ACTIONS` (see `transactional.failure.Remedy`).
message, remedy
    What happened, and what to do. Each is a list of strings, which are joined by spaces. ``<name>`` is replaced by a parameter.

A package that builds on this one extends the catalogue (`Catalogue.extend`) with its own conditions. Such a package can also
replace the remedies of this package's conditions, because it knows the commands to run. An entry that replaces a remedy has
no other field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transactional.printable import printable

FILE = "conditions.json"

ACTIONS = ("restart", "rewind", "none", "stopped")

_PLACEHOLDER = re.compile(r"<(\w+)>(\.?)")


@dataclass(frozen=True)
class Condition:
    """An error condition: one entry of the catalogue."""

    name: str  # The condition's stable name, in upper case.
    sql_state: str
    action: str  # One of `ACTIONS`.
    # Texts in which ``<name>`` stands for a parameter.
    message: str
    remedy: str
    package: str  # The package that defines the condition.

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of the parameters that the message and the remedy need."""
        return frozenset(match[1] for match in _PLACEHOLDER.finditer(self.message + self.remedy))

    def text(self, parameters: Mapping[str, Any]) -> str:
        """Return message and remedy with the parameters filled in. A placeholder without a parameter is left unchanged.

        Control characters in parameters are escaped, because other users may have chosen the values. If a parameter ends with
        a period, and the text has one after the placeholder, only one is kept.
        """

        def value(match: re.Match[str]) -> str:
            text = printable(shown(parameters[match[1]]), "\n\t") if match[1] in parameters else f"<{match[1]}>"
            return text.removesuffix(match[2]) + match[2]

        return _PLACEHOLDER.sub(value, f"{self.message} {self.remedy}")


def shown(value: Any) -> str:
    """Return a parameter as text for a message: a list with commas between its items, None or an empty list as ``none``."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


class Catalogue(Mapping[str, Condition]):
    """The conditions of all packages that have extended the catalogue, by name. The files are read at the first lookup."""

    def __init__(self, *packages: str) -> None:
        # Packages with a `FILE`. Later packages may replace the remedies of earlier packages' conditions.
        self._packages = list(packages)
        self._conditions: dict[str, Condition] | None = None

    def extend(self, package: str) -> None:
        """Add a package's conditions and remedies. Adding a package twice changes nothing."""
        if package not in self._packages:
            self._packages.append(package)
            self._conditions = None

    def __getitem__(self, name: str) -> Condition:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, Condition]:
        if self._conditions is None:
            from importlib import resources  # slow to import, and most processes raise no error

            found: dict[str, Condition] = {}
            for package in self._packages:
                text = resources.files(package).joinpath(FILE).read_text(encoding="utf-8")
                for name, entry in json.loads(text).items():
                    remedy = " ".join(entry["remedy"])
                    if "message" in entry:
                        message = " ".join(entry["message"])
                        found[name] = Condition(name, entry["sqlState"], entry["action"], message, remedy, package)
                    else:
                        found[name] = replace(found[name], remedy=remedy)
            self._conditions = found
        return self._conditions


catalogue = Catalogue("transactional.errors")
"""The conditions that this process knows."""
