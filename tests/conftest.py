"""What unit tests share: commands in processes of their own may import the file sink, which no program has registered there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.spark.sinks import ALLOW  # with it the catalogue of errors is complete: its remedies name commands


@pytest.fixture(scope="session", autouse=True)
def allowed() -> Iterator[None]:
    """As an operator allows it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOW, "integration.file_sink:FileSink")
        yield
