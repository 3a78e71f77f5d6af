"""Laws of bases, energies, objectives, heads and bases with a memory, as assertions that name the broken law; and
`every_outcome`, which runs a random function on every outcome of its choices, for exact expectations."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from esscher.core.device import device_of
from esscher.core.objective import Loss, Objective
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Base, Energy, State
from esscher.exact.enumeration import enumerate_points
from esscher.heads.head import Head
from esscher.networks.network import Memory

Result = TypeVar("Result")

Check = TypeVar("Check", bound=Callable[..., None])


def _on_its_device(check: Check) -> Check:
    """The check on the device of its first argument: all that it makes is there."""

    @wraps(check)
    def on_its_device(part: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device(device_of(part) or "cpu"):
            check(part, *args, **kwargs)

    return cast(Check, on_its_device)


@torch.no_grad()
@_on_its_device
def check_base(base: Base, prompts: list[list[int]], *, tolerance: float = 1e-5) -> None:
    """Check a base on a space small enough to enumerate, after prompts of different lengths.

    Scores are reproducible and sum to one; positions outside the point score 0; a score depends on no padding, other row or
    later token; stepping equals scoring; `select` commutes with `advance` and copies; two states do not share memory.
    """
    together = prompts_of(prompts)
    x = enumerate_points(base.space, together)
    score = base.log_probs(x)
    assert_equal(base.log_probs(x), score, tolerance, "scoring must give the same twice (is dropout on? call eval())")
    assert_equal(torch.where(x.counted, 0.0, score), torch.zeros_like(score), 0.0, "a score outside the point must be 0")
    total = score.sum(-1).double().exp().view(len(prompts), -1).sum(-1)
    assert_equal(total, torch.ones_like(total), tolerance, "probabilities of all points must sum to 1")
    assert_equal(base.log_probs(_padded(x))[:, : score.shape[1]], score, tolerance, "padding must not change a score")
    first, expected = base.begin(_padded(together))[0], base.begin(together)[0]
    assert_equal(first.exp(), expected.exp(), tolerance, "padding must not change a prompt")
    shorter = Sequences(x.tokens, x.start, torch.maximum(x.stop - 1, x.start))  # without the last token of each point
    before = torch.where(shorter.counted, score, 0.0)
    assert_equal(base.log_probs(shorter), before, tolerance, "a score must not look ahead")
    _check_company(base, together, x, score, tolerance)
    _check_stepping(base, x, score, tolerance)
    _check_states(base, together, tolerance)


@torch.no_grad()
def check_energy(energy: Energy, x: Sequences, *, tolerance: float = 1e-5) -> None:
    """Check an energy: one reproducible real number a row, independent of padding and of other rows of the batch. The rows
    should differ in energy and length, as draws of the base do."""
    given = x.tokens.clone()
    together = _one_number_a_row(energy(x), len(x))
    assert torch.equal(x.tokens, given), "an energy must not write into the tokens that it is given"
    wrong = torch.isnan(together) | (together == -torch.inf)
    assert not bool(wrong.any()), f"an energy must be a number, or +inf to forbid; {int(wrong.sum())} of {len(x)} are not"
    assert_equal(energy(x), together, tolerance, "an energy must be the same twice (is dropout on? call eval())")
    assert_equal(energy(_padded(x)), together, tolerance, "padding must not change an energy")
    alone = torch.cat([_one_number_a_row(energy(_alone(x, row)), 1) for row in range(len(x))])
    assert_equal(alone, together, tolerance, "an energy must not depend on the other rows of the batch")


def _one_number_a_row(values: Tensor, rows: int) -> Tensor:
    assert values.is_floating_point(), f"an energy gives real numbers, float32 or float64, not {values.dtype}"
    assert values.shape == (rows,), f"an energy gives one number a row: expected {(rows,)}, got {tuple(values.shape)}"
    return values


def check_objective(
    objective: Objective,
    target: Any,
    data: Any,
    exact: Callable[[], Tensor | Mapping[str, Tensor]],
    parameters: Sequence[Tensor] | Mapping[str, Sequence[Tensor]],
    *,
    rng: Rng | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Check an objective: loss and metrics are finite, at least one unit is counted, and the gradient is that of `exact`, the
    loss without sampling (for a game, by player). Objectives that sample need the `Exhaustive` sampler, which turns their
    expectation into a sum; without an `rng` they are run on every outcome of their random choices."""
    exact_loss = exact()
    players = exact_loss if isinstance(exact_loss, Mapping) else {"": exact_loss}
    by_player = parameters if isinstance(parameters, Mapping) else {"": parameters}
    expected = {name: _gradients(value, by_player[name]) for name, value in players.items()}
    gradients = {name: [torch.zeros_like(gradient) for gradient in parts] for name, parts in expected.items()}

    def run(rng_: Rng) -> dict[str, list[Tensor]]:
        loss = objective(target, data, rng=rng_, step=0)
        values = loss.value if isinstance(loss.value, Mapping) else {"": loss.value}
        _check_loss(loss, values, set(players))
        return {name: _gradients(value, by_player[name]) for name, value in values.items()}

    for probability, outcome in every_outcome(run) if rng is None else [(1.0, run(rng))]:
        for name, parts in outcome.items():
            gradients[name] = [total + probability * part for total, part in zip(gradients[name], parts, strict=True)]
    for name in expected:
        for number, (gradient, right) in enumerate(zip(gradients[name], expected[name], strict=True)):
            where = f"parameter {number}" + f" of the {name}" * bool(name)
            assert_equal(gradient, right, tolerance, f"the gradient must be that of the exact loss ({where})")


def every_outcome(run: Callable[[Rng], Result]) -> Iterator[tuple[float, Result]]:
    """Yield (probability, result) for all outcomes of the random choices of `run(rng)`; the probabilities sum to 1. The number
    of outcomes is the product over all choices, so keep vocabulary, length and draws tiny."""
    pending: list[list[tuple[int, ...]]] = [[]]
    while pending:
        replay = _ScriptedRng(pending.pop(), pending)
        result = run(replay)
        if replay.probability > 0:
            yield replay.probability, result


class _ScriptedRng:
    """An `Rng` that replays a script, and appends to `pending` every alternative beyond the end of the script."""

    def __init__(self, script: list[tuple[int, ...]], pending: list[list[tuple[int, ...]]]):
        self.script, self.pending, self.step, self.probability = script, pending, 0, 1.0

    def categorical(self, log_weight: Float[Tensor, "B V"], draws: int = 1) -> Int[Tensor, "B {draws}"]:
        share = torch.softmax(log_weight.double(), -1)
        if self.step == len(self.script):
            possible = [[v for v in range(share.shape[1]) if row[v] > 0] for row in share.tolist() for _ in range(draws)]
            options = list(itertools.product(*possible))
            self.pending += [[*self.script, option] for option in options[1:]]
            self.script.append(options[0])
        pick = torch.tensor(self.script[self.step], dtype=torch.long, device=share.device).view(len(share), draws)
        self.step += 1
        self.probability *= float(share.gather(1, pick).prod())
        return pick

    def bernoulli(self, log_probability: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
        yes = log_probability.double().exp().clamp(max=1).reshape(-1)
        return self.categorical(torch.stack([1 - yes, yes], -1).log())[:, 0].bool().view(log_probability.shape)

    def permutation(self, count: int) -> Int[Tensor, "{count}"]:
        orders = list(itertools.permutations(range(count)))
        return torch.tensor(orders[int(self.categorical(torch.zeros(1, len(orders))))])

    def tokens(self, sequences: int, device: torch.device) -> "_ScriptedTokens":
        return _ScriptedTokens(self)

    def stream(self, *path: int | str) -> "_ScriptedRng":
        return self


class _ScriptedTokens:
    """The `TokenRng` of a script."""

    def __init__(self, rng: _ScriptedRng):
        self.rng = rng

    def categorical(self, log_weight: Float[Tensor, "A V"]) -> Int[Tensor, "A"]:
        return self.rng.categorical(log_weight)[:, 0]

    def keep(self, index: Int[Tensor, "K"]) -> None:
        """Nothing: the script has one entry for each row of a choice."""


def _gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True))


def _check_loss(loss: Loss, values: Mapping[str, Tensor], players: set[str]) -> None:
    assert set(values) == players, f"a loss has a value for each player: expected {sorted(players)}, got {sorted(values)}"
    for value in values.values():
        assert value.shape == () and bool(value.isfinite()), f"a loss is one finite number, not {value.detach()}"
    wrong = {name: number for name, number in loss.metrics.items() if not math.isfinite(number)}
    assert not wrong, f"metrics must be finite numbers; got {wrong}"
    assert loss.count >= 1, f"a loss is a mean over at least one unit, not {loss.count}"


def _check_company(base: Base, prompts: Sequences, x: Sequences, score: Tensor, tolerance: float) -> None:
    """The last point of each prompt is scored alone, and each prompt is begun alone."""
    together, _ = base.begin(prompts)
    per_prompt = len(x) // len(prompts)
    for number in range(len(prompts)):
        row = (number + 1) * per_prompt - 1
        alone = _alone(x, row)
        scored = base.log_probs(alone)
        expected = score[row, : scored.shape[1]]
        assert_equal(scored[0], expected, tolerance, "a score must not depend on the other rows of the batch")
        first, expected = base.begin(_alone(prompts, number))[0][0].exp(), together[number].exp()
        assert_equal(first, expected, tolerance, "a prompt must not depend on the other prompts of the batch")


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
        assert_equal(normal, torch.zeros_like(normal), tolerance, f"step {t} must be normalised")
        stepped = log_prob.gather(1, token[:, None])[here, 0]
        assert_equal(stepped, score.gather(1, column)[here, 0], tolerance, f"stepping must equal scoring (step {t})")
        if t + 1 < base.space.max_length:
            log_prob, state = base.advance(state, token)


def _check_states(base: Base, prompts: Sequences, tolerance: float) -> None:
    """`select` commutes with `advance`, before and after a step; selected and new states have memory of their own."""
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

    def start() -> State:
        return base.begin(prompts)[1]

    expected = last(step(start(), token), other)
    early = last(step(base.select(start(), index), token[index]), other[index])
    assert_equal(early, expected[index], tolerance, "select must commute with advance")
    late = last(base.select(step(start(), token), index), other[index])
    assert_equal(late, expected[index], tolerance, "select must commute with advance, after a step too")
    state = step(start(), token)
    step(start(), other)
    assert_equal(last(state, other), expected, tolerance, "two states must not share memory")
    state = start()
    last(step(base.select(state, torch.arange(count)), other), token)
    early = last(step(state, token), other)
    assert_equal(early, expected, tolerance, "select must copy: advancing the branch changed the state")
    state = step(start(), token)
    step(base.select(state, torch.arange(count)), token)
    assert_equal(last(state, other), expected, tolerance, "select must copy, after a step too: the branch changed the state")


def _padded(x: Sequences) -> Sequences:
    """The same rows with three more columns of padding, and other tokens in all padding."""
    tokens = torch.nn.functional.pad(x.tokens, (0, 3))
    inside = torch.arange(tokens.shape[1], device=tokens.device) < x.stop[:, None]
    return Sequences(torch.where(inside, tokens, (tokens + 1) % (tokens.max() + 1)), x.start, x.stop)


def _alone(x: Sequences, row: int) -> Sequences:
    alone = x.rows(slice(row, row + 1))
    return Sequences(alone.tokens[:, : int(alone.stop)], alone.start, alone.stop)


def assert_equal(actual: Tensor, expected: Tensor, tolerance: float, law: str) -> None:
    """Assert that two tensors agree within the tolerance; equal infinities agree. `law` begins the message."""
    actual, expected = actual.detach(), expected.detach()
    gap = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf)
    gap = torch.where(actual == expected, 0.0, gap)
    assert gap.numel() == 0 or float(gap.max()) <= tolerance, f"{law}; off by {float(gap.max()):.3g}"


@_on_its_device
def check_head(head: Head, hidden: Float[Tensor, "N D"], *, tolerance: float = 1e-10) -> None:
    """Check a head on hidden vectors in double precision: log-probabilities are the normalised logits, of any shape; logsumexps
    are those of the logits; both are 0 for tokens below 0; `logits_fn` gives the logits; gradients are those of the logits."""
    hidden = hidden.detach().requires_grad_()
    logits = head.logits(hidden)
    rows, size = logits.shape
    every = torch.arange(size).expand(rows, size)
    scores = head.log_probs(hidden[:, None].expand(-1, size, -1), every)
    assert_equal(scores.exp().sum(-1), torch.ones(rows), tolerance, "scores must sum to 1 over all tokens")
    assert_equal(scores, logits.log_softmax(-1), tolerance, "scores must be the normalised logits")
    tokens = (torch.arange(rows) * 3) % (size + 1) - 1  # -1 is no token
    log_probs, logsumexp = head.log_probs_and_logsumexp(hidden, tokens)
    valid, score = tokens >= 0, logits.log_softmax(-1).gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    expected = torch.where(valid, score, 0.0), torch.where(valid, logits.logsumexp(-1), 0.0)
    alone = head.log_probs(hidden, tokens)
    assert_equal(alone, expected[0], tolerance, "a token below 0 must score 0, and the others as they do alone")
    assert_equal(log_probs, expected[0], tolerance, "scores beside logsumexps must be the scores")
    assert_equal(logsumexp, expected[1], tolerance, "logsumexps must be those of the logits, and 0 below token 0")
    for steps in (1, 100):
        assert_equal(head.logits_fn(steps)(hidden), logits, tolerance, f"logits prepared for {steps} steps must be the logits")
    weights = [hidden, *(head.parameters() if isinstance(head, nn.Module) else ())]
    weighted = torch.linspace(-1, 2, rows, dtype=hidden.dtype)
    for name, outputs, right in (
        ("scores", (head.log_probs(hidden, tokens),), expected[:1]),
        ("scores and logsumexps", (log_probs, logsumexp), expected),
    ):
        gradients, exact = (
            torch.autograd.grad(
                side, weights, [weighted] * len(side), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for side in (outputs, right)
        )
        for gradient, other in zip(gradients, exact, strict=True):
            allowed = tolerance * max(1.0, float(other.abs().max()))
            assert_equal(gradient, other, allowed, f"gradients of {name} must be those of the logits")


PIECES = ((1,), (2, 3), (5,), (1, 0, 4))  # lengths of pieces, repeated until the stream ends


@runtime_checkable
class StreamBase(Protocol):
    """A base that reads streams with a memory."""

    @property
    def space(self) -> Space: ...

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]: ...

    def init_memory(self, rows: int) -> Memory: ...

    def read(self, memory: Memory, tokens: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], Memory]: ...


@_on_its_device
def check_stream(base: StreamBase, *, length: int = 11, rows: int = 4, tolerance: float = 1e-5) -> None:
    """Check a base with a memory of at least `length` tokens on streams of `length` tokens: a stream in pieces is scored as one
    long row; a memory holds no gradient and has an independent row for each stream; reading does not change a given memory."""
    place = torch.arange(rows)[:, None] * 5 + torch.arange(length)[None, :]
    tokens = (place * place // 3 + place) % base.space.vocab_size
    full = torch.full((rows,), length)
    with torch.no_grad():
        whole = base.log_probs(Sequences(tokens, torch.zeros_like(full), full))
        for lengths in PIECES:
            score = _in_pieces(base, tokens, lengths)
            assert_equal(score, whole, tolerance, f"a stream in pieces of {lengths} must be scored as one long row is")
        alone = torch.cat([_in_pieces(base, tokens[row : row + 1], (3,)) for row in range(rows)])
        assert_equal(alone, whole, tolerance, "a stream must not depend on the other streams of the batch")
        _check_rows(base, tokens, whole, tolerance)
    with torch.enable_grad():
        _, memory = base.read(base.init_memory(len(tokens)), tokens)
    held = sum(part.requires_grad for part in memory)
    assert held == 0, f"a memory must hold no gradient; {held} of its {len(memory)} tensors do"


def _in_pieces(base: StreamBase, tokens: Int[Tensor, "B L"], lengths: tuple[int, ...]) -> Float[Tensor, "B L"]:
    memory, scores, first, number = base.init_memory(len(tokens)), [], 0, 0
    while first < tokens.shape[1]:
        last = min(first + lengths[number % len(lengths)], tokens.shape[1])
        score, memory = base.read(memory, tokens[:, first:last])
        scores.append(score)
        first, number = last, number + 1
    return torch.cat(scores, 1)


def _check_rows(base: StreamBase, tokens: Int[Tensor, "B L"], whole: Float[Tensor, "B L"], tolerance: float) -> None:
    """Rows of a memory can be selected, and reading twice from one memory gives the same."""
    half = tokens.shape[1] // 2
    _, memory = base.read(base.init_memory(len(tokens)), tokens[:, :half])
    shapes = [tuple(part.shape) for part in memory]
    assert all(shape[:1] == (len(tokens),) for shape in shapes), f"a memory has a row for each stream; its shapes are {shapes}"
    base.read(memory, tokens[:, half:].flip(1))
    again, _ = base.read(memory, tokens[:, half:])
    assert_equal(again, whole[:, half:], tolerance, "reading must leave the memory it began with as it was")
    order = torch.arange(len(tokens)).flip(0)
    chosen, _ = base.read(tuple(part[order] for part in memory), tokens[order, half:])
    assert_equal(chosen, whole[order, half:], tolerance, "rows of a memory must be those of the streams")
