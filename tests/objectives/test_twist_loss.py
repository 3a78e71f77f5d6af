"""The losses of a twist: on all points of a space in their true proportions, the true twist is where each is least."""

import math

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.energies.twist import TwistedBase
from esscher.exact.enumeration import enumerate_points
from esscher.objectives.twist import TwistLoss, TwistRows

LENGTH = 3
POINTS = enumerate_points(Space(2, LENGTH))  # under a uniform base, each of them once is the base itself
VALUES = torch.randn(2**LENGTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # -E
LOG_Z = VALUES.logsumexp(0) - LENGTH * math.log(2)
FORMS = ["likelihood", "contrastive", "poisson", "relative", "bellman"]


class Table(TwistedBase):
    """A twist with a number for each prefix and next token."""

    def __init__(self, tables: list[torch.Tensor]):
        object.__setattr__(self, "tables", [table.clone().requires_grad_() for table in tables])

    def steps_over(self, x: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        columns = [table[tuple(x.tokens[:, :t].T)].expand(len(x), 2) for t, table in enumerate(self.tables)]
        return torch.full((len(x), LENGTH, 2), 0.5, dtype=torch.float64).log(), torch.stack(columns, 1)


def true_tables() -> list[torch.Tensor]:
    """log E[exp(-E)] - log Z for each prefix of t tokens and the next one."""
    tables = [(VALUES - LOG_Z).view(*[2] * (t + 1), -1) for t in range(LENGTH)]
    return [table.logsumexp(-1) - math.log(table.shape[-1]) for table in tables]


def gradient(form: str, tables: list[torch.Tensor], log_ratio: torch.Tensor | None = None) -> float:
    """The largest entry of the gradient of a loss."""
    twist, ratio = Table(tables), torch.zeros(len(POINTS), LENGTH, dtype=torch.float64) if log_ratio is None else log_ratio
    TwistLoss((form,))(twist, TwistRows(POINTS, VALUES - LOG_Z, ratio), rng=SeededRng(0)).value.backward()
    return max(float(table.grad.abs().max()) for table in twist.tables)


@pytest.mark.parametrize("form", FORMS)
def test_the_true_twist_is_stationary_and_no_twist_is_not(form):
    assert gradient(form, true_tables()) < 1e-10
    assert gradient(form, [torch.zeros_like(table) for table in true_tables()]) > 1e-2


@pytest.mark.parametrize("form", [form for form in FORMS if form != "bellman"])
def test_a_wrong_ratio_of_base_and_drawing_law_is_caught(form):
    """Draws of the base with the ratios of another law; the bellman form reads none."""
    wrong = torch.randn(len(POINTS), LENGTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert gradient(form, true_tables(), wrong) > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_draws_of_another_law_have_the_same_minimum(form):
    """Points in the proportions of the target itself: each as often as its weight, with the ratios a / p of its tokens."""
    tables = true_tables()
    log_ratio = []
    for row in POINTS.tokens.tolist():
        steps = [table[tuple(row[:t])] for t, table in enumerate(tables)]
        log_p = [torch.log_softmax(step, -1)[token] for step, token in zip(steps, row, strict=True)]
        log_ratio.append(torch.stack([torch.tensor(0.5, dtype=torch.float64).log() - value for value in log_p]))
    times = ((VALUES - LOG_Z).exp() * 4000).round().long()  # rounding leaves a gradient of this size
    rows = TwistRows(POINTS, VALUES - LOG_Z, torch.stack(log_ratio)).rows(torch.arange(len(POINTS)).repeat_interleave(times))
    twist = Table(tables)
    TwistLoss((form,))(twist, rows, rng=SeededRng(0)).value.backward()
    assert max(float(table.grad.abs().max()) for table in twist.tables) < 1e-3
