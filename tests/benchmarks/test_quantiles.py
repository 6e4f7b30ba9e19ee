"""Quantiles are values that were measured."""

from __future__ import annotations

import pytest

from integration.benchmarks.quantiles import quantile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        (1000, 0.5, 500),
        (1000, 0.99, 990),
        (1000, 0.999, 999),  # 0.999 * 1000 is 999.0000000000001 on some ways: not the thousandth
        (1000, 1.0, 1000),
        (10, 0.999, 10),
        (3, 0.5, 2),
        (1, 0.01, 1),
    ],
)
def test_the_rank_is_the_smallest_that_covers_the_share(values: int, share: float, expected: int) -> None:
    assert quantile(range(1, values + 1), share) == expected


@pytest.mark.parametrize("share", [0, -0.5, 1.01])
def test_a_share_is_over_nothing_and_at_most_all(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        quantile([1.0], share)


def test_of_nothing_there_is_no_quantile() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)
