from __future__ import annotations

from connector.kafka.source.read_options import BATCH_ONLY, GROUP_ID, READ_OPTIONS, STREAM_ONLY
from tests.option_page import SOURCE_PAGE, source_options, with_table


def test_the_table_of_docs_source_md_is_the_codes_own() -> None:
    page = SOURCE_PAGE.read_text()
    assert with_table(page, source_options()) == page, "run: python -m tests.option_page"


def test_every_option_stands_in_the_table_once() -> None:
    keys = [line.split("`")[1] for line in source_options().splitlines()[2:]]
    assert keys == [option.key for option in (*READ_OPTIONS.options, GROUP_ID)]
    assert set(keys) >= BATCH_ONLY | STREAM_ONLY
