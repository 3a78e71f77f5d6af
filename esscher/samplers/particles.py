"""Sequential Monte Carlo: extend all particles of a prompt together, weigh the prefixes, resample when few dominate.

An unfinished prefix is weighed by a guess of its final weight, the *twist* (`esscher.samplers.twists`); a finished sequence by
the energy itself, so the draws are properly weighted with any twist. Without a twist, sequences are weighed and resampled only
as they finish. Pruning halves the prefixes block by block: the largest weight is paired with the smallest, the second largest
with the second smallest; one of each pair survives, with probability proportional to its weight, and gets their mean weight.
The weights stay proper, their sum stays exact, no prefix is duplicated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.device import on_device_of
from esscher.core.draws import Draws, ess
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Tilted
from esscher.samplers.ancestral import rows_at_once
from esscher.samplers.scoring import log_weight, score_in_batches


def residual_resampling(log_weight: Float[Tensor, "P N"], count: int, *, rng: Rng) -> Int[Tensor, "P {count}"]:
    """Residual resampling: `count` columns for each row, in order; a column of share s appears count * s times on average, and
    only the fractional part is random, so equal weights give every column once."""
    share = torch.softmax(log_weight.double(), -1)
    if bool(share.isnan().any()):
        raise ValueError(
            "A prompt has no draw of any weight: its energies are all infinite. Nothing was resampled; tilt less, or draw more."
        )
    expected = count * share
    certain = (expected + 1e-9).floor()  # rounding must not make an integer random
    missing = (count - certain.sum(-1)).long()
    left = torch.where(missing[:, None] > 0, (expected - certain).clamp(min=0), 1.0)  # a dummy, not used
    most = int(missing.max()) if len(missing) else 0
    chosen = rng.categorical(left.log(), max(1, most))
    used = torch.arange(chosen.shape[1], device=chosen.device) < missing[:, None]
    times = certain.long().scatter_add(1, chosen, used.long())
    column = torch.arange(times.shape[1], device=times.device).expand(times.shape)
    return column.reshape(-1).repeat_interleave(times.view(-1)).view(-1, count)


def resample(draws: Draws, count: int, *, rng: Rng) -> Sequences:
    """`count` points for each prompt, prompt-major; a draw of share s appears count * s times on average."""
    column = residual_resampling(draws.log_weight, count, rng=rng)
    first = torch.arange(len(column))[:, None] * draws.log_weight.shape[1]
    return draws.x.rows((first + column).view(-1).to(draws.x.tokens.device))


@dataclass(frozen=True)
class Particles:
    """Weighted draws by sequential Monte Carlo, dependent within a prompt; a pruned prefix counts in `cost` as far as drawn."""

    twist: Callable[[Sequences], Tensor] | None = None
    """Guess of -E(x) from a prefix of x; None weighs finished sequences only."""
    threshold: float = 0.5
    """Resample the particles of a prompt where their effective sample size falls below this share of them."""
    block: int = 1
    """Tokens between two weighings."""
    pruning_rounds: int = 0
    """Start with 2^this times as many prefixes, and keep half of them after each block."""

    def __post_init__(self) -> None:
        if self.block < 1 or self.pruning_rounds < 0:
            raise ValueError(f"A block has at least 1 token, and prefixes are halved 0 times or more: {self}.")

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        device, prompts = prompts.tokens.device, on_device_of(prompts, target.base, target.energy)
        together = max(1, rows_at_once(target.space) // (draws * 2**self.pruning_rounds))
        drawn = Draws.cat([self._run(target, group, draws, rng) for group in prompts.split(together)], 0)
        return replace(drawn, x=drawn.x.to(device))

    def _run(self, target: Tilted, prompts: Sequences, draws: int, rng: Rng) -> Draws:
        cloud = _ParticleCloud(target, prompts, draws * 2**self.pruning_rounds, rng)
        while True:
            cloud.extend()
            if cloud.length % self.block == 0 or not cloud.growing():
                cloud.weigh(self.twist)
                if cloud.shape[1] > draws:
                    cloud.halve()
                if cloud.growing():
                    cloud.resample(self.threshold)
            if not cloud.growing():
                while cloud.shape[1] > draws:
                    cloud.halve()
                return cloud.draws()
            cloud.advance()


class _ParticleCloud:
    """P * N growing sequences; the rows that are `open_` have one row each of the base's state, in order."""

    def __init__(self, target: Tilted, prompts: Sequences, draws: int, rng: Rng):
        self.target, self.rng, self.shape = target, rng, (len(prompts), draws)
        rows = prompts.repeat(draws)
        device = rows.tokens.device
        self.start = rows.start
        self.tokens = torch.nn.functional.pad(rows.tokens, (0, target.space.max_length))
        self.stop = rows.start.clone()
        self.open_ = torch.ones(len(rows), dtype=torch.bool, device=device)
        self.closing = torch.zeros_like(self.open_)  # finished since the last weighing
        self.log_base = torch.zeros(len(rows), dtype=torch.float64, device=device)
        self.log_twist = torch.zeros(len(rows), dtype=torch.float64, device=device)
        self.log_weight = torch.zeros(self.shape, dtype=torch.float64, device=device)
        self.length, self.lost = 0, 0  # tokens of an open row, and of all pruned rows
        log_prob, state = target.base.begin(prompts)
        shared = torch.arange(len(prompts), device=device).repeat_interleave(draws)
        self.log_prob, self.state = log_prob[shared], target.base.select(state, shared)

    def growing(self) -> bool:
        return bool(self.open_.any())

    def extend(self) -> None:
        """One more token for every open row."""
        token = self.rng.categorical(self.log_prob)[:, 0]
        rows = self.open_.nonzero()[:, 0]
        self.tokens[rows, self.stop[rows]] = token
        self.log_base[rows] += self.log_prob.gather(1, token[:, None])[:, 0].double()
        self.stop[rows] += 1
        self.length += 1
        ended = self.target.space.is_eos(token) | (self.length == self.target.space.max_length)
        self.slot = (~ended).nonzero()[:, 0]  # rows of the state that go on
        self.closing[rows[ended]] = True
        self.open_[rows[ended]] = False

    def weigh(self, twist: Callable[[Sequences], Tensor] | None) -> None:
        """Update each row's log weight: by the energy where it has finished, by the twist where it is open."""
        log_twist = self.log_twist.clone()
        if bool(self.closing.any()):
            log_twist[self.closing] = log_weight(self.target, self.points(self.closing)).to(log_twist.device)
        if twist is not None and bool(self.open_.any()):
            guess = score_in_batches(twist, self.points(self.open_))
            if not bool(torch.isfinite(guess).all()):
                raise ValueError(
                    "A twist must be finite: it gave infinity or NaN for a prefix, which would forbid sequences that the "
                    "target allows. The draws were dropped; return a large negative number instead."
                )
            log_twist[self.open_] = guess.to(log_twist.device)
        change = torch.where(log_twist == -torch.inf, log_twist, log_twist - self.log_twist)
        self.log_weight = self.log_weight + change.view(self.shape)
        self.log_twist, self.closing = log_twist, torch.zeros_like(self.closing)

    def resample(self, threshold: float) -> None:
        """Resample the prompts whose effective sample size is low; their mean weight stays."""
        share = torch.softmax(self.log_weight, -1)
        few = ess(share) < threshold * self.shape[1]
        if not bool(few.any()):
            return
        ancestor = torch.arange(len(self.start), device=self.start.device).view(self.shape)
        first = ancestor[few, :1]
        ancestor[few] = first + residual_resampling(self.log_weight[few], self.shape[1], rng=self.rng)
        mean = torch.logsumexp(self.log_weight, -1, keepdim=True) - math.log(self.shape[1])
        self.log_weight = torch.where(few[:, None], mean, self.log_weight)
        self._keep(ancestor.view(-1))

    def halve(self) -> None:
        """Prune half of the rows of each prompt, one of each pair; the mean weight stays."""
        rows, half = torch.arange(len(self.start), device=self.start.device).view(self.shape), self.shape[1] // 2
        order = self.log_weight.argsort(dim=-1, descending=True, stable=True)
        strong, weak = order[:, :half], order[:, half:].flip(-1)
        pair = torch.stack([self.log_weight.gather(1, strong), self.log_weight.gather(1, weak)], -1)
        lost = self.rng.categorical(pair.view(-1, 2)).view(-1, half) == 0  # the weak one is
        keep = rows.gather(1, torch.where(lost, strong, weak))
        self.lost += int((self.stop - self.start).sum() - (self.stop - self.start)[keep].sum())
        self.log_weight = torch.logsumexp(pair, -1) - math.log(2)
        self.shape = (self.shape[0], half)
        self._keep(keep.view(-1))

    def _keep(self, ancestor: Int[Tensor, "K"]) -> None:
        """Replace the rows by these; the states follow at the next `advance`."""
        slot_of = torch.full_like(self.start, -1)
        slot_of[self.open_] = self.slot
        self.slot = slot_of[ancestor][self.open_[ancestor]]
        for name in ("tokens", "start", "stop", "open_", "closing", "log_base", "log_twist"):
            setattr(self, name, getattr(self, name)[ancestor])

    def advance(self) -> None:
        base = self.target.base
        rows = self.open_.nonzero()[:, 0]
        if len(self.slot) != len(self.log_prob) or bool((self.slot[1:] <= self.slot[:-1]).any()):
            self.state = base.select(self.state, self.slot)
        self.log_prob, self.state = base.advance(self.state, self.tokens[rows, self.stop[rows] - 1])

    def points(self, rows: Tensor) -> Sequences:
        width = int(self.stop[rows].max())
        return Sequences(self.tokens[rows, :width], self.start[rows], self.stop[rows])

    def draws(self) -> Draws:
        every = torch.ones_like(self.open_)
        weights, log_base = self.log_weight.cpu(), self.log_base.view(self.shape).cpu()
        dropped = math.ceil(self.lost * len(every) / int((self.stop - self.start).sum()))
        return Draws(self.points(every), weights, log_base, estimates_z=True, independent=False, cost=len(every) + dropped)
