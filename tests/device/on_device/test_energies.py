"""Energies on the device obey their laws, follow the device of the sequences, and their numbers are those of the CPU."""

import pytest
import torch
from laws import test_every_energy as energies
from laws.parts import one_of_each
from marks import slow_except

from esscher.core.device import device_of, place
from esscher.core.target import Tilted
from esscher.testing import check_energy

DEVICE = torch.device("cuda", 0)
CPU_X = energies.X.rows(slice(0, 6))
X = CPU_X.to(DEVICE)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@pytest.mark.parametrize("case", slow_except(one_of_each(energies.ENERGIES), energies.ENERGIES))
def test_energies(case, root):
    energy = energies.ENERGIES[case](root)
    expected = energy(CPU_X).detach()
    energy = place(energy, DEVICE)
    assert device_of(energy) in (None, DEVICE)
    check_energy(energy, X, tolerance=2e-4)
    if case not in energies.NO_EMPTY:
        check_energy(energy, energies.EMPTY.to(DEVICE), tolerance=2e-4)
    actual = energy(X).detach()
    assert actual.device == (torch.device("cpu") if case.endswith("_twist") else DEVICE)
    assert actual.dtype == expected.dtype and torch.allclose(actual.cpu(), expected, atol=1e-5)


def test_an_energy_that_answers_on_the_cpu():
    """As a function of texts would: scores of the tilted model are on the device of the sequences all the same."""
    base = place(energies.TARGET.base, DEVICE)
    energy = lambda x: torch.tensor([float(sum(point)) for point in x.points()])  # noqa: E731
    score = Tilted(base, energy).log_score(X)
    assert score.device == DEVICE
    assert torch.equal(score.cpu(), Tilted(energies.TARGET.base, energy).log_score(CPU_X))
