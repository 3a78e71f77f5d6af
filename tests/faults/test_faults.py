"""A sample of every family of faults; `make faults` runs all of them."""

import pytest

from faults.run import FAMILIES, family
from faults.suite import sampled

CASES = [pytest.param(name, case, id=f"{name}-{case.name}") for name in FAMILIES for case in sampled(family(name))]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_no_fault(name, case, tmp_path):
    outcome = case.run(tmp_path)
    assert not any(outcome.faults.values()), outcome.detail


@pytest.mark.parametrize("name", FAMILIES)
def test_the_suite_has_the_cases_it_promises(name):
    names = [case.name for case in family(name).cases()]
    assert len(names) >= family(name).fewest
    assert len(set(names)) == len(names), "two cases have one name"
