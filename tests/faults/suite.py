"""What the families of faults share: cases with a name, counts of what went wrong, and one table for all.

A family is a module of this folder with a `FAMILY`. A case does one attack in a folder of its own and returns how often each
fault of its family happened: all zero is a pass. `test_faults.py` runs a sample of every family in the fast tests;
`python tests/faults/run.py` (`make faults`) runs all of them and prints the table of docs/reliability.md.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What became of a case: how often each fault happened, and words on the first of them."""

    faults: Mapping[str, int] = field(default_factory=dict)  # by name; a fault that is left out did not happen
    detail: str = ""  # the input and what was printed, where there was a fault


@dataclass(frozen=True)
class Case:
    """One attack; `run` gets an empty folder. Cases of one family do not depend on each other, or on their order."""

    name: str
    run: Callable[[Path], Outcome]
    slow: bool = False  # never in the sample of the fast tests


@dataclass(frozen=True)
class Family:
    """Cases of one kind, and the faults that are counted, all of which must be 0."""

    name: str
    what: str  # what the cases are, as the table says it
    faults: tuple[str, ...]
    fewest: int  # cases in the whole suite
    cases: Callable[[], Iterator[Case]]  # all of them, always the same ones in the same order
    sample: int = 12  # how many the fast tests run, evenly spaced
    serial: bool = False  # whether cases need the machine for themselves: they have time limits
    forks: bool = False  # whether cases are forks (`tests/forks.py`) themselves: their own process would be one more


def sampled(family: Family) -> list[Case]:
    """The cases of the fast tests."""
    cases = [case for case in family.cases() if not case.slow]
    step = max(1, len(cases) // family.sample)
    return cases[::step][: family.sample]
