"""Plausible bugs of a sink's author, planted into the SQLite sink of docs/write-a-sink.md. The kit has to find each."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BUGS", "Bug"]


class Bug(NamedTuple):
    """One bug: texts of the correct sink and what the author wrote instead, and the test of the kit that finds it."""

    edits: tuple[tuple[str, str], ...]
    found_by: str
    moment: str = "run begins"  # If the test damages the store: when.

    def planted(self, source: str) -> str:
        """Return the sink with this bug."""
        for right, wrong in self.edits:
            assert source.count(right) == 1, f"once in the sink of the page: {right}"
            source = source.replace(right, wrong)
        return source


MOVES = """            (now,) = database.execute("SELECT state FROM transactions WHERE name = ?", (name,)).fetchone()
"""

BUGS = {
    "a commit in two steps: the state first, then the rows": Bug(
        ((MOVES, "        with self.database() as database:\n" + MOVES),),
        "test_a_commit_that_dies_anywhere_is_whole_or_nothing_and_can_be_repeated",
    ),
    "a commit in two steps: the rows first, then the state": Bug(
        (
            (
                """            database.execute("UPDATE transactions SET state""",
                """            if state == "committed":
                database.execute("INSERT INTO events SELECT row FROM staged WHERE name = ?", (name,))
                database.commit()
            database.execute("UPDATE transactions SET state""",
            ),
            (
                """            if now == "committed":
                database.execute("INSERT INTO events SELECT row FROM staged WHERE name = ?", (name,))
""",
                "",
            ),
        ),
        "test_a_commit_that_dies_anywhere_is_whole_or_nothing_and_can_be_repeated",
    ),
    "the checkpoint's id is noted before its rows": Bug(
        (
            (
                """        lost = [dict(handle) for handle in handles if self.end(""",
                """        with self.database() as database:
            database.execute("INSERT INTO newest VALUES (?, ?)", (checkpoint.queryId, checkpoint.completed))
        lost = [dict(handle) for handle in handles if self.end(""",
            ),
        ),
        "test_a_commit_that_dies_anywhere_is_whole_or_nothing_and_can_be_repeated",
    ),
    "a repeated commit adds the rows again": Bug(
        (
            (
                """            database.execute("DELETE FROM staged WHERE name = ?", (name,))\n""",
                "",
            ),
        ),
        "test_a_commit_can_be_repeated",
    ),
    "a commit of several handles commits the first": Bug(
        (
            (
                'for handle in handles if self.end(handle["name"], "committed")',
                'for handle in handles[:1] if self.end(handle["name"], "committed")',
            ),
        ),
        "test_several_handles_are_committed_by_one_call",
    ),
    "an abort takes a committed transaction back": Bug(
        ((" WHERE name = ? AND state = 'prepared'\", (state, name))", ' WHERE name = ?", (state, name))'),),
        "test_an_abort_after_the_commit_says_so_and_changes_nothing",
    ),
    "prepared rows are written to disk when the task's sink is closed": Bug(
        (
            (
                """        with self.database() as database:
            database.executemany("INSERT INTO staged VALUES (?, ?)", rows)
""",
                """        self.later = [*getattr(self, "later", []), *rows]

    def close(self) -> None:
        with self.database() as database:
            database.executemany("INSERT INTO staged VALUES (?, ?)", getattr(self, "later", []))
""",
            ),
        ),
        "test_a_prepared_transaction_survives_the_death_of_its_process",
    ),
    "a short batch at the end waits for more rows": Bug(
        (
            (
                """        rows = [(transaction, json.dumps(row, default=str)) for row in batch.to_pylist()]
""",
                """        self.later = getattr(self, "later", []) + batch.to_pylist()
        if batch.num_rows > 1 and len(self.later) < 1000:
            return
        rows, self.later = [(transaction, json.dumps(row, default=str)) for row in self.later], []
""",
            ),
        ),
        "test_every_row_of_a_task_becomes_visible_in_order",
    ),
    "the order of a task's rows is lost": Bug(
        (("SELECT row FROM staged WHERE name = ?", "SELECT row FROM staged WHERE name = ? ORDER BY row"),),
        "test_every_row_of_a_task_becomes_visible_in_order",
    ),
    "a sweep aborts the transactions of prefixes that begin alike": Bug(
        (
            ("WHERE prefix = ? AND", "WHERE prefix LIKE ? AND"),
            ('(self.options["transactionalIdPrefix"],)', '(self.options["transactionalIdPrefix"] + "%",)'),
        ),
        "test_the_transactions_of_another_prefix_are_not_swept",
    ),
    "a sweep aborts what the journal knows": Bug(
        ((' if {"name": name} not in known)', ")"),),
        "test_lingering_transactions_are_swept_and_known_ones_kept",
    ),
    "a sweep forgets the commits that the journal names": Bug(
        (
            (
                """(self.options["transactionalIdPrefix"],)).fetchall()
""",
                """(self.options["transactionalIdPrefix"],)).fetchall()
            database.execute("DELETE FROM transactions WHERE state = 'committed'")
""",
            ),
            ('WHERE name = ?", (name,)).fetchone()', "WHERE name = ?\", (name,)).fetchone() or ('lost',)"),
        ),
        "test_a_commit_can_be_repeated",
    ),
    "a late sweep forgets commits of a newer run": Bug(
        (
            (
                """(self.options["transactionalIdPrefix"],)).fetchall()
""",
                """(self.options["transactionalIdPrefix"],)).fetchall()
            if not known:
                database.execute("DELETE FROM transactions WHERE state = 'committed'")
""",
            ),
            ('WHERE name = ?", (name,)).fetchone()', "WHERE name = ?\", (name,)).fetchone() or ('lost',)"),
        ),
        "test_a_commit_can_be_repeated",
    ),
    "newestCheckpoint answers one behind": Bug(
        (("(checkpoint.queryId, checkpoint.completed))", "(checkpoint.queryId, checkpoint.completed - 1))"),),
        "test_prepared_rows_are_invisible_until_they_are_committed",
    ),
    "the checkpoint's id is noted with its first commit": Bug(
        (("(checkpoint.queryId, checkpoint.completed))", "(checkpoint.queryId, checkpoint.id))"),),
        "test_the_store_holds_a_checkpoint_after_the_last_of_its_commits",
    ),
    "newestCheckpoint returns the id that was noted last": Bug(
        (
            (
                "SELECT max(checkpoint) FROM newest WHERE query = ?",
                "SELECT checkpoint, max(rowid) FROM newest WHERE query = ?",
            ),
        ),
        "test_a_late_commit_of_an_earlier_checkpoint_leaves_the_newest",
    ),
    "isThere always answers yes": Bug(
        (("""return os.path.exists(self.path)""", "return True"),),
        "test_a_sink_notices_that_its_store_is_gone_and_creates_none",
    ),
    "a task meets a missing store with an exception that is not the contract's": Bug(
        (
            (
                """        with self.database() as database:
            database.execute("INSERT INTO transactions VALUES""",
                """        with self.database() as database:
            if context.batchId and not database.execute("SELECT 1 FROM newest").fetchone():
                raise FileNotFoundError(self.path)
            database.execute("INSERT INTO transactions VALUES""",
            ),
        ),
        "test_a_store_that_is_not_the_journal_s_is_never_written_into",
        "driver lives",
    ),
    "the store's identity is another one each time": Bug(
        (
            (
                "    def isThere(self",
                """    def identify(self) -> dict[str, str]:
        return {"database": os.urandom(4).hex()}

    def isThere(self""",
            ),
        ),
        "test_a_store_keeps_its_identity",
    ),
}
