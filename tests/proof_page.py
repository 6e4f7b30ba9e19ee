"""The appendix of the docs that names the tests of each claim: ``python -m tests.proof_page`` writes ``docs/proof.md``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.proof_tables import fault_tables

__all__ = ["PAGE", "claims", "proof_page"]

CLAIMS = Path(__file__).parent / "claims.json"
PAGE = Path(__file__).parent.parent / "docs" / "proof.md"

HEAD = """\
# Which test proves what

<!-- Written by python -m tests.proof_page, from tests/claims.json. -->

The claims of each page, with the tests that would fail if they were wrong. A single test is given by its name
(`grep -rn NAME tests integration`), a whole file by its path. `make test` runs all tests except those that are marked `matrix`;
`make matrix` runs these.

## A store that is not the journal's

`StoreMatrix` damages each sink's real store when a run begins, while a driver lives, between the tasks and their commit, and
under `df.write`: the query stops, and no row is written by it. *limit*: [not noticed](put-back.md#limits).

| sink | older copy | gone | another one | emptied log | ahead |
|---|---|---|---|---|---|
| `2pc-kafka` | limit | yes | yes | | when a run begins; else limit |
| `2pc-delta` | yes | yes | yes | yes | yes |
| `2pc-delta`, one of two under `2pc-multi` | yes | yes | yes | yes | yes |
| `2pc-postgresql`, `2pc-mysql` (MariaDB) | yes | yes | yes | | yes |
| the SQLite sinks of the docs, the file sink of the tests | yes | yes | yes | | yes |

An empty cell is a store without such a log.

## Values that are read back

`integration/random_values.py` draws values of every type: extremes, far years, NaN, -0.0, 38 digits, NUL, bytes that are no
UTF-8, texts of 1 MB, with nulls, in slices. An independent client reads each as it was sent, or its row was refused.
`make matrix` draws this number of values of each type, `make test` a few hundred:

| store | types | values of each | read with |
|---|---|---|---|
| `2pc-postgresql`, in binary, in text, in arrays | 39 pairs of types | 100,000 in each form | psycopg |
| `2pc-mysql` (MariaDB) | 40 pairs of types | 100,000 | PyMySQL |
| `2pc-delta` | 18, and lists, structs and maps of each | 100,000 rows | deltalake, pyarrow's Parquet, delta-spark |
| `2pc-delta`, partition columns | 16 | 2,400 (a file each), 5,100 rows | deltalake's SQL, delta-spark |
| `encode_avro`, `decode_avro` | 34 pairs of types, in 4 shapes | 100,000, twice | fastavro; Java's Avro |
| `decode_avro` between two schemas | 5,000 random pairs | 20 records each | Java's Avro |
| `encode_json`, `decode_json` | 7 fields of all kinds | 100,000 records each | Python's json |
"""


def claims() -> dict[str, dict[str, list[str]]]:
    """Return the claims of each page, each with the names of its tests or the paths of their files."""
    pages: dict[str, dict[str, list[str]]] = json.loads(CLAIMS.read_text(encoding="utf-8"))
    return pages


def proof_page() -> str:
    """Return the page."""
    return "\n".join([HEAD, fault_tables(), *(_section(page, rows) for page, rows in claims().items())])


def _section(page: str, rows: dict[str, list[str]]) -> str:
    name = Path(page).name
    lines = [f"| {claim} | {', '.join(f'`{test}`' for test in tests)} |" for claim, tests in rows.items()]
    return "\n".join([f"## [{name}]({name})\n", "| claim | tests |", "|---|---|", *lines, ""])


if __name__ == "__main__":
    PAGE.write_text(proof_page(), encoding="utf-8")
