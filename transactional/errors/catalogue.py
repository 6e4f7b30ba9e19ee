"""The catalogue of error conditions, in the manner of Spark's ``error-conditions.json``.

A package keeps its conditions in a file ``conditions.json``. A condition has

sqlState
    Five characters, of the classes of the SQL standard: 40 rolled back, 55 not in the state that it has to be in, ...
action
    What a supervisor does about it: a member of `transactional.failure.Remedy`, by value of `ACTIONS`.
message, remedy
    What happened, and what to do; lists of strings that are joined by spaces. ``<name>`` stands for a parameter.

A package above this one extends the catalogue (`Catalogue.extend`) with conditions of its own, and with remedies for
conditions of this package (an entry that has only a remedy): it knows the commands with which a remedy is carried out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transactional.printable import printable

__all__ = ["ACTIONS", "FILE", "Catalogue", "Condition", "catalogue"]

FILE = "conditions.json"

ACTIONS = ("restart", "rewind", "none", "stopped")

_PLACEHOLDER = re.compile(r"<(\w+)>(\.?)")


@dataclass(frozen=True)
class Condition:
    """One row of the catalogue.

    Parameters
    ----------
    name : str
        Stable upper-case name.
    sql_state : str
    action : str
        One of `ACTIONS`.
    message, remedy : str
        Templates.
    package : str
        Where it is defined.
    """

    name: str
    sql_state: str
    action: str
    message: str
    remedy: str
    package: str

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of the parameters that the templates need."""
        return frozenset(match[1] for match in _PLACEHOLDER.finditer(self.message + self.remedy))

    def text(self, parameters: Mapping[str, Any]) -> str:
        """Return message and remedy with these parameters; a missing one leaves its placeholder.

        Control characters of a parameter are escaped: it may be a name that another user chose.
        A full stop that ends both a parameter and the template stands once.
        """

        def value(match: re.Match[str]) -> str:
            text = printable(shown(parameters[match[1]]), "\n\t") if match[1] in parameters else f"<{match[1]}>"
            return text.removesuffix(match[2]) + match[2]

        return _PLACEHOLDER.sub(value, f"{self.message} {self.remedy}")


def shown(value: Any) -> str:
    """Return a parameter as it stands in a message: a list by commas, nothing as ``none``."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


class Catalogue(Mapping[str, Condition]):
    """Conditions by name, of all packages that have extended it. Files are read when a condition is first asked for.

    Parameters
    ----------
    *packages : str
        Each has a `FILE`; later ones may give the conditions of earlier ones another remedy.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = list(packages)
        self._conditions: dict[str, Condition] | None = None

    def extend(self, package: str) -> None:
        """Add a package's conditions and remedies. Extending twice changes nothing."""
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
            from importlib import resources  # slow, and most processes raise nothing

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
