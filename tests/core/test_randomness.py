"""Drawing a column: the frequencies, the columns that must never come, and the streams.

Frequencies are compared with the weights by a chi-square test, columns pooled until each cell expects at least
20 draws. False-alarm rate 1e-6 for each test.
"""

import math

import pytest
import torch
from marks import slow
from scipy.stats import chi2

from esscher.core import randomness
from esscher.core.randomness import UNIFORM_STEP, SeededRng, _invert

FALSE_ALARM = 1e-6


def chi_square_p(column, share) -> float:
    """The p-value of drawn columns under the probabilities `share`; cells are runs of columns in an order by share."""
    order = share.argsort(descending=True)
    expected = share[order].double() * len(column)
    cell = torch.zeros(len(share), dtype=torch.long)
    number, filled = 0, 0.0
    for place, expect in enumerate(expected.tolist()):
        cell[order[place]] = number
        filled += expect
        if filled >= 20:
            number, filled = number + 1, 0.0
    cell = cell.clamp(max=max(number - 1, 0))  # the rest joins the last full cell
    actual = torch.bincount(cell[column], minlength=int(cell.max()) + 1).double()
    mean = torch.zeros_like(actual).index_add_(0, cell, share.double() * len(column))
    if len(actual) == 1:
        return 1.0
    return float(chi2.sf(float(((actual - mean) ** 2 / mean).sum()), len(actual) - 1))


def weights(width: int, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    log_weight = torch.randn(width, generator=generator)
    if kind == "holes":  # most columns forbidden, the first and the last among them
        log_weight[torch.rand(width, generator=generator) < 0.6] = -torch.inf
        log_weight[[0, -1]] = -torch.inf
        log_weight[width // 2] = 1.0
    if kind == "huge":  # far beyond the range of exp, and unequal
        log_weight = 5e3 + 4 * log_weight
        log_weight[: width // 3] -= 1e4
    if kind == "steep":
        log_weight = -torch.arange(width) / 7.0
    return log_weight


def drawn(log_weight: torch.Tensor, count: int, how: str) -> torch.Tensor:
    """`count` columns, as rows of one draw each, or as many draws of one row."""
    rng = SeededRng(5, how)
    if how == "one row":
        return rng.categorical(log_weight[None], count)[0]
    parts = [rng.categorical(log_weight.expand(500, -1))[:, 0] for _ in range(count // 500)]
    return torch.cat(parts)


@pytest.mark.parametrize("how", ["rows", "one row"])
@pytest.mark.parametrize("kind", ["plain", "holes", "huge", "steep"])
@pytest.mark.parametrize("width", [2, 3, 64, 65, 300, slow(10_007)])
def test_frequencies(width, kind, how):
    if width == 2 and kind == "holes":
        kind = "plain"
    log_weight = weights(width, kind)
    column = drawn(log_weight, 20_000, how)
    assert chi_square_p(column, torch.softmax(log_weight.double(), -1)) > FALSE_ALARM
    assert bool((log_weight[column] > -torch.inf).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_levels_invert_the_distribution_function(dtype):
    """Without chance: an even grid of 'uniform' numbers meets each column as often as its weight says, within one."""
    log_weight = weights(1000, "holes").to(dtype)
    grid = (torch.arange(50_000, dtype=torch.float64)[:, None] + 0.5) / 50_000
    column = _invert(log_weight.expand(50_000, -1), grid)[:, 0]
    expected = torch.softmax(log_weight.double(), -1) * 50_000
    assert bool((column[1:] >= column[:-1]).all())
    assert float((torch.bincount(column, minlength=1000) - expected).abs().max()) < 1.1


@pytest.mark.parametrize("whole", [0, randomness.MAX_SINGLE_PASS_WEIGHTS])
@pytest.mark.parametrize("width", [1, 2, 3, 64, 65, 100, 101, 10_007])
def test_the_ends_of_the_unit_interval_never_meet_a_column_without_weight(width, whole, monkeypatch):
    """The smallest number, 1, and rows with weight in one column only, at every place of a block."""
    monkeypatch.setattr(randomness, "MAX_SINGLE_PASS_WEIGHTS", whole)
    ends = torch.tensor([[UNIFORM_STEP, 1.0, 0.5]], dtype=torch.float64)
    places = range(width) if width < 200 else [0, 1, 99, 100, 101, 5000, width - 2, width - 1]
    for place in places:
        log_weight = torch.full((1, width), -torch.inf)
        log_weight[0, place] = -7e3
        for uniform in (ends, *ends.split(1, 1)):
            assert _invert(log_weight, uniform).unique().tolist() == [place]


def test_the_last_bits_never_lead_past_the_last_weight():
    """Totals of blocks and of columns are rounded differently: no point near a border falls out of its block."""
    generator = torch.Generator().manual_seed(0)
    log_weight = 3 * torch.randn(400, 977, generator=generator)
    log_weight[:, torch.rand(977, generator=generator) < 0.5] = -torch.inf
    for bits in range(40, 54):
        column = _invert(log_weight, 1 - torch.rand(400, 1, generator=generator, dtype=torch.float64) * 2.0**-bits)
        assert bool((log_weight.gather(1, column) > -torch.inf).all())
    last = int((log_weight[0] > -torch.inf).nonzero().max())
    assert _invert(log_weight, torch.ones(400, 1, dtype=torch.float64)).unique().tolist() == [last]


@pytest.mark.parametrize("rows", [1, 300])
def test_the_smallest_number_meets_the_first_weight(rows, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, generator: torch.zeros(shape, dtype=dtype))
    log_weight = torch.zeros(rows, 300)
    log_weight[:, :20] = -torch.inf
    assert SeededRng(0).categorical(log_weight).unique().tolist() == [20]


@pytest.mark.parametrize("width", [300, 400])
def test_weights_are_left_as_they_are(width):
    log_weight = weights(width, "holes").expand(200, -1).contiguous()
    before = log_weight.clone()
    SeededRng(0).categorical(log_weight)
    assert torch.equal(log_weight, before)


@pytest.mark.parametrize("whole", [0, randomness.MAX_SINGLE_PASS_WEIGHTS])
@pytest.mark.parametrize("width", [1, 5, 100, 10_007])
def test_rows_without_usable_weight_give_the_first_column(width, whole, monkeypatch):
    monkeypatch.setattr(randomness, "MAX_SINGLE_PASS_WEIGHTS", whole)
    log_weight = torch.zeros(5, width)
    log_weight[0], log_weight[1], log_weight[2, -1], log_weight[3, -1] = -torch.inf, torch.nan, torch.nan, torch.inf
    column = SeededRng(0).categorical(log_weight, 3)
    assert column[:4].tolist() == [[0] * 3] * 4 and int(column.max()) < width


@pytest.mark.parametrize("whole", [0, randomness.MAX_SINGLE_PASS_WEIGHTS])
def test_rare_columns_can_be_drawn(whole, monkeypatch):
    """A column of probability 1e-12 has its own interval of the uniform numbers, as wide as its weight says."""
    monkeypatch.setattr(randomness, "MAX_SINGLE_PASS_WEIGHTS", whole)
    log_weight = torch.zeros(1, 10_007)
    log_weight[0, 0] = math.log(1e-12 * 10_006)
    uniform = torch.tensor([[UNIFORM_STEP, 0.99e-12, 1.01e-12]], dtype=torch.float64)
    assert _invert(log_weight, uniform).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("draws", [1, 5])
@pytest.mark.parametrize("kind", ["plain", "holes", "huge", "steep"])
def test_both_ways_draw_the_same_columns(kind, draws, monkeypatch):
    """Up to rounding, which moves less than one border in a thousand past a number."""
    log_weight = weights(10_007, kind).expand(400, -1)
    uniform = torch.rand(400, draws, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).add_(UNIFORM_STEP)
    by_blocks = _invert(log_weight, uniform)
    monkeypatch.setattr(randomness, "MAX_SINGLE_PASS_WEIGHTS", log_weight.numel())
    whole = _invert(log_weight, uniform)
    assert float((whole != by_blocks).double().mean()) < 0.01 and bool(((whole - by_blocks).abs() < 200).all())


def test_rows_are_independent_of_each_other():
    """Each row has its own weights and its own number; a row alone is drawn as it is in company."""
    log_weight = torch.stack([weights(300, kind) for kind in ("plain", "holes", "huge", "steep")])
    uniform = torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).add_(UNIFORM_STEP)
    together = _invert(log_weight, uniform)
    assert all(torch.equal(_invert(log_weight[[row]], uniform[[row]])[0], together[row]) for row in range(4))


def block_without_its_start(log_weight, uniform, block):
    """Wrong: forgets that the point is measured from the start of its block."""
    padded = torch.nn.functional.pad(log_weight.softmax(-1), (0, -log_weight.shape[1] % block))
    weight = padded.view(len(log_weight), -1, block).double()
    chosen = torch.searchsorted(weight.sum(-1).cumsum(-1), uniform * weight.sum((-1, -2))[:, None], right=True)
    inner = weight.gather(1, chosen[..., None].expand(-1, -1, block)).cumsum(-1)
    return chosen * block + torch.searchsorted(inner, (uniform * inner[..., -1])[..., None])[..., 0]


def test_a_wrong_inversion_is_caught(monkeypatch):
    """Within a block the wrong version reuses a number that already chose the block."""
    monkeypatch.setattr(randomness, "_invert_by_blocks", block_without_its_start)
    log_weight = weights(300, "plain")
    assert chi_square_p(drawn(log_weight, 20_000, "rows"), torch.softmax(log_weight, -1)) < FALSE_ALARM


def test_a_temperature_error_is_caught():
    """A temperature of 1.05 is seen every time in ten."""
    log_weight = 2 * weights(300, "plain")
    share = torch.softmax(log_weight, -1)
    for seed in range(10):
        column = SeededRng(seed).categorical((log_weight / 1.05)[None], 60_000)[0]
        assert chi_square_p(column, share) < FALSE_ALARM


def test_accepts_at_its_rate():
    """Within five standard errors: false-alarm rate 6e-7."""
    log_probability = torch.tensor([-torch.inf, math.log(0.3), 0.0, 2.0]).expand(100_000, 4)
    rate = SeededRng(1).bernoulli(log_probability).double().mean(0)
    assert rate[[0, 2, 3]].tolist() == [0, 1, 1]
    assert abs(float(rate[1]) - 0.3) < 5 * math.sqrt(0.21 / 100_000)


def test_streams_are_counters_not_positions():
    first, second = SeededRng(0), SeededRng(0)
    first.permutation(10)
    log_weight = torch.zeros(1, 1000)
    a, b = (source.stream("step", 7).categorical(log_weight, 20) for source in (first, second))
    c = second.stream("step", 8).categorical(log_weight, 20)
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert sorted(SeededRng(3).permutation(50).tolist()) == list(range(50))
