"""What unit tests share: commands in processes of their own may import the file sink, which no program has registered there."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from connector.formats.discovery import ALLOW  # with it the catalogue of errors is complete: its remedies name commands
from tests.last_green import LastGreen

# By default an example that takes 200 ms fails: a machine that others share may stand still for as long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


# A worker of pytest keeps admins for their next use. Their threads log when the brokers of an earlier test are gone, and a test
# that looks at its own warnings would see theirs.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


def pytest_configure(config: pytest.Config) -> None:
    """Note at the end, where all processes of a session are known, that all is green."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LastGreen())


def pytest_report_header() -> str:
    """Say which seeds the simulation plays."""
    from tests.simulation.__main__ import first_seed

    return f"simulation: seeds from {first_seed()} on"


@pytest.fixture(scope="session", autouse=True)
def allowed() -> Iterator[None]:
    """As an operator allows it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOW, "integration.file_sink:FileSink")
        yield


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """Log no warnings of the product: tests that play thousands of runs would log thousands."""
    logger = logging.getLogger("transactional")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)
