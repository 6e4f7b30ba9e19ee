"""The texts of the product and of its documentation use the words of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import words

TEXT = '''
"""A place that is made anew: so
many words."""

told = {"tell": 1}  # nobody minds a name

print(f"{told} is mended " "at work", "tells")
'''


PAGE = """\
A place that is made anew, by
nobody.

```python
found = mend("what nobody tells")  # anew
```

`barrier tell` is `told`, it mends
"""


def test_every_text_of_the_product_and_every_page_uses_the_words_of_the_table() -> None:
    assert words.found() == []


def test_a_word_is_found_in_docstrings_comments_and_messages_and_not_in_names(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(TEXT, encoding="utf-8")
    hits = words.in_file(tmp_path / "module.py", "module.py")
    assert [hit.rpartition(":")[0] for hit in hits] == [
        "module.py:2: anew",
        "module.py:2: so many",
        "module.py:5: nobody",
        "module.py:7: at work",
        "module.py:7: mended",
    ]


def test_a_word_is_found_in_the_prose_of_a_page_and_not_in_its_code(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    hits = words.in_file(tmp_path / "page.md", "page.md")
    assert [hit.rpartition(":")[0] for hit in hits] == ["page.md:1: anew", "page.md:2: nobody", "page.md:8: mends"]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("Whether rows may name a topic.", "Whether"),
        ("The checkpoint.\n\nstatus : str\n    Of its newest run.", "Of"),
        ("A row is late. What a crash has left is ended.", ". What"),
        ("A row could become visible behind a newer one.", "behind"),
        ("Start the query: it goes on with the commit.", "goes on"),
        ("Give the copy a prefix, too.", ", too"),
    ],
)
def test_a_sentence_of_the_reference_that_english_does_not_have_is_found(text: str, shape: str) -> None:
    assert [hit.split(": ")[1] for hit in words.in_text("name", text)] == [shape]


def test_the_reference_has_docstrings_messages_remedies_and_options() -> None:
    texts: dict[str, list[str]] = {}
    for name, text in words.reference():
        texts.setdefault(name, []).append(text)
    assert texts["supervise"][0].startswith("Keep a query running")
    assert texts["TwoPhaseCommitSink.commit"][0].startswith("Commit the handles")
    assert len(texts["NO_JOURNAL"]) == 3  # a message, and the remedies of the core and of the connector
    assert texts["topic"][0].startswith("The topic for all rows")
    assert len(texts) > 300


def test_each_exception_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = words.EXCEPTIONS
    monkeypatch.setattr(words, "EXCEPTIONS", frozenset())
    hits = words.found()
    for name, word in kept:
        assert any(hit.startswith(f"{name}:") and f": {word}: " in hit for hit in hits), (name, word)
