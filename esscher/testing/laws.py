"""What every base, energy and objective must obey, as assertions that name the law they find broken."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypeVar

from esscher.exact.enumeration import enumerate_points
from esscher.objective import Loss, Objective
from esscher.randomness import Rng
from esscher.space import Sequences, prompts_of
from esscher.target import Base, Energy, State
from esscher.testing.outcomes import every_outcome

Target = TypeVar("Target")
Data = TypeVar("Data")


@torch.no_grad()
def check_base(base: Base, prompts: list[list[int]], *, tolerance: float = 1e-5) -> None:
    """The laws of a base on a space small enough to enumerate, after prompts of different lengths.

    Scoring is the same twice and sums to one; uncounted positions score 0; neither padding nor the company in
    the batch changes a score or a prompt; a score does not look ahead; stepping equals scoring; `select`
    commutes with `advance` and copies; two states do not share memory.
    """
    together = prompts_of(prompts)
    x = enumerate_points(base.space, together)
    score = base.log_probs(x)
    equal(base.log_probs(x), score, tolerance, "scoring must give the same twice (is dropout on? call eval())")
    equal(torch.where(x.counted, 0.0, score), torch.zeros_like(score), 0.0, "a score outside the point must be 0")
    total = score.sum(-1).double().exp().view(len(prompts), -1).sum(-1)
    equal(total, torch.ones_like(total), tolerance, "probabilities of all points must sum to 1")
    _check_padding(base, together, x, score, tolerance)
    _check_no_look_ahead(base, x, score, tolerance)
    _check_company(base, together, x, score, tolerance)
    _check_stepping(base, x, score, tolerance)
    _check_states(base, together, tolerance)


@torch.no_grad()
def check_energy(energy: Energy, x: Sequences, *, tolerance: float = 1e-5) -> None:
    """The laws of an energy: one number a row, the same twice; padding and the company in the batch do not matter."""
    together = energy(x)
    assert together.shape == (len(x),), f"an energy gives one number a row: expected {(len(x),)}, got {tuple(together.shape)}"
    wrong = torch.isnan(together) | (together == -torch.inf)
    assert not bool(wrong.any()), f"an energy must be a number, or +inf to forbid; {int(wrong.sum())} of {len(x)} are not"
    equal(energy(x), together, tolerance, "an energy must be the same twice (is dropout on? call eval())")
    equal(energy(_padded(x)), together, tolerance, "padding must not change an energy")
    alone = torch.cat([energy(_alone(x, row)) for row in range(len(x))])
    equal(alone, together, tolerance, "an energy must not depend on the other rows of the batch")


def check_objective(
    objective: Objective[Target, Data, Any],
    target: Target,
    data: Data,
    exact: Callable[[], Tensor | Mapping[str, Tensor]],
    parameters: Sequence[Tensor] | Mapping[str, Sequence[Tensor]],
    *,
    rng: Rng | None = None,
    tolerance: float = 1e-5,
) -> None:
    """The laws of an objective: its loss is a finite number, its metrics are, and it counts at least one unit; the gradient
    is that of `exact`, the loss written down without sampling; of a game, player by player.

    Objectives that sample are given the `Exhaustive` sampler, which turns their expectation into a sum; or, without an `rng`,
    they are run on every outcome of their dice, and the gradient is the mean over these.
    """
    wanted = exact()
    players = wanted if isinstance(wanted, Mapping) else {"": wanted}
    own = parameters if isinstance(parameters, Mapping) else {"": parameters}
    expected = {name: _slopes(value, own[name]) for name, value in players.items()}
    found = {name: [torch.zeros_like(slope) for slope in slopes] for name, slopes in expected.items()}

    def run(given: Rng) -> dict[str, list[Tensor]]:
        loss = objective(target, data, rng=given, step=0)
        values = loss.value if isinstance(loss.value, Mapping) else {"": loss.value}
        _check_loss(loss, values, set(players))
        return {name: _slopes(value, own[name]) for name, value in values.items()}

    for probability, slopes in every_outcome(run) if rng is None else [(1.0, run(rng))]:
        for name, parts in slopes.items():
            found[name] = [so_far + probability * part for so_far, part in zip(found[name], parts, strict=True)]
    for name in expected:
        for number, (one, other) in enumerate(zip(found[name], expected[name], strict=True)):
            where = f"parameter {number}" + f" of the {name}" * bool(name)
            equal(one, other, tolerance, f"the gradient must be that of the exact loss ({where})")


def _slopes(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True))


def _check_loss(loss: Loss, values: Mapping[str, Tensor], players: set[str]) -> None:
    assert set(values) == players, f"a loss has a value for each player: expected {sorted(players)}, got {sorted(values)}"
    for value in values.values():
        assert value.shape == () and bool(value.isfinite()), f"a loss is one finite number, not {value.detach()}"
    wrong = {name: number for name, number in loss.metrics.items() if not math.isfinite(number)}
    assert not wrong, f"metrics must be finite numbers; got {wrong}"
    assert loss.count >= 1, f"a loss is a mean over at least one unit, not {loss.count}"


def _check_padding(base: Base, prompts: Sequences, x: Sequences, score: Tensor, tolerance: float) -> None:
    padded = base.log_probs(_padded(x))[:, : score.shape[1]]
    equal(padded, score, tolerance, "padding must not change a score")
    found, expected = base.begin(_padded(prompts))[0], base.begin(prompts)[0]
    equal(found.exp(), expected.exp(), tolerance, "padding must not change a prompt")


def _check_no_look_ahead(base: Base, x: Sequences, score: Tensor, tolerance: float) -> None:
    """Cutting each point by one token leaves the scores before the cut."""
    shorter = Sequences(x.tokens, x.start, torch.maximum(x.stop - 1, x.start))
    expected = torch.where(shorter.counted, score, 0.0)
    equal(base.log_probs(shorter), expected, tolerance, "a score must not look ahead")


def _check_company(base: Base, prompts: Sequences, x: Sequences, score: Tensor, tolerance: float) -> None:
    """A row scored alone, for the last point of each prompt; and a prompt begun alone."""
    begun, _ = base.begin(prompts)
    per_prompt = len(x) // len(prompts)
    for number in range(len(prompts)):
        row = (number + 1) * per_prompt - 1
        alone = _alone(x, row)
        found = base.log_probs(alone)
        equal(found[0], score[row, : found.shape[1]], tolerance, "a score must not depend on the other rows of the batch")
        first, _ = base.begin(_alone(prompts, number))
        equal(first[0].exp(), begun[number].exp(), tolerance, "a prompt must not depend on the other prompts of the batch")


def _check_stepping(base: Base, x: Sequences, score: Tensor, tolerance: float) -> None:
    prompts = x.prompts()
    log_prob, state = base.begin(prompts)
    shape = (len(x), base.space.vocab_size)
    assert log_prob.shape == shape, f"a step gives every token of the space: expected {shape}, got {tuple(log_prob.shape)}"
    for t in range(base.space.max_length):
        here = (x.start + t < x.stop).nonzero()[:, 0]
        column = (x.start + t).clamp(max=x.tokens.shape[1] - 1)[:, None]
        token = x.tokens.gather(1, column)[:, 0]
        normal = torch.logsumexp(log_prob[here].double(), -1)
        equal(normal, torch.zeros_like(normal), tolerance, f"step {t} must be normalised")
        stepped = log_prob.gather(1, token[:, None])[here, 0]
        equal(stepped, score.gather(1, column)[here, 0], tolerance, f"stepping must equal scoring (step {t})")
        if t + 1 < base.space.max_length:
            log_prob, state = base.advance(state, token)


def _check_states(base: Base, prompts: Sequences, tolerance: float) -> None:
    """select then advance = advance then select, early and late; selected states and new ones have their own memory."""
    if base.space.max_length < 3:
        return
    count, symbols = len(prompts), [v for v in range(base.space.vocab_size) if v != base.space.eos]
    index = torch.tensor([count - 1, 0, *range(count)])
    token = torch.tensor([symbols[row % len(symbols)] for row in range(count)])
    other = torch.tensor([symbols[(row + 1) % len(symbols)] for row in range(count)])

    def step(state: State, tokens: Tensor) -> State:
        return base.advance(state, tokens)[1]

    def last(state: State, tokens: Tensor) -> Tensor:
        return base.advance(state, tokens)[0].exp()

    def begun() -> State:
        return base.begin(prompts)[1]

    expected = last(step(begun(), token), other)
    early = last(step(base.select(begun(), index), token[index]), other[index])
    equal(early, expected[index], tolerance, "select must commute with advance")
    late = last(base.select(step(begun(), token), index), other[index])
    equal(late, expected[index], tolerance, "select must commute with advance, after a step too")
    state = step(begun(), token)
    step(begun(), other)
    equal(last(state, other), expected, tolerance, "two states must not share memory")
    state = begun()
    last(step(base.select(state, torch.arange(count)), other), token)
    equal(last(step(state, token), other), expected, tolerance, "select must copy: advancing the branch changed the state")
    state = step(begun(), token)
    step(base.select(state, torch.arange(count)), token)
    equal(last(state, other), expected, tolerance, "select must copy, after a step too: the branch changed the state")


def _padded(x: Sequences) -> Sequences:
    """The same rows with three more columns of padding, and another of their tokens in all padding."""
    tokens = torch.nn.functional.pad(x.tokens, (0, 3))
    inside = torch.arange(tokens.shape[1]) < x.stop[:, None]
    return Sequences(torch.where(inside, tokens, (tokens + 1) % (tokens.max() + 1)), x.start, x.stop)


def _alone(x: Sequences, row: int) -> Sequences:
    one = x.rows(slice(row, row + 1))
    return Sequences(one.tokens[:, : int(one.stop)], one.start, one.stop)


def equal(found: Tensor, expected: Tensor, tolerance: float, law: str) -> None:
    """Nowhere further apart than the tolerance; infinities agree with themselves."""
    found, expected = found.detach(), expected.detach()
    gap = (found.double() - expected.double()).abs().nan_to_num(nan=torch.inf)
    gap = torch.where(found == expected, 0.0, gap)
    assert gap.numel() == 0 or float(gap.max()) <= tolerance, f"{law}; off by {float(gap.max()):.3g}"
