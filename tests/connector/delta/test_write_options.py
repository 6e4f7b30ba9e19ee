"""What a path may hold."""

from __future__ import annotations

import pytest

from connector.delta.write_options import parse_write_options
from transactional.errors import OptionError
from transactional.sink import Options

SECRET = "S3cr3tOfNobody"


@pytest.mark.parametrize(
    "path",
    [
        f"abfss://c@account.dfs.core.windows.net/t?sv=1&sig={SECRET}",
        f"s3://user:{SECRET}@bucket/t",
        f"/data/t?token={SECRET}",
    ],
)
def test_a_path_with_a_secret_is_refused_as_the_journal_and_commands_show_it(path: str) -> None:
    """The option was hidden; the store's identity, a checkpoint's output and a savepoint had it in clear text."""
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*path.*storage\.") as refused:
        parse_write_options(Options({"path": path}))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "path", ["abfss://c@account.dfs.core.windows.net/t", "s3://b/a@b:c@d/t", "/data/key=1/token=2", "file:///data/t"]
)
def test_other_paths_are_taken(path: str) -> None:
    assert parse_write_options(Options({"path": path})).path
