"""Which cases of a long list `make test` runs; `make slow` runs the rest."""

from collections.abc import Iterable

import pytest


def slow(*values):
    """The values of one case, marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_except(fast: Iterable[str], cases: Iterable[str]) -> list:
    """The cases as parameters, all but the fast ones marked slow; a fast name that is no case is an error."""
    cases, fast = list(cases), set(fast)
    assert fast <= set(cases), f"no such cases: {sorted(fast - set(cases))}"
    return [case if case in fast else slow(case) for case in cases]
