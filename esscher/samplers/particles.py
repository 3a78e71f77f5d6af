"""Sequential Monte Carlo: extend all draws of a prompt together, weigh the prefixes, resample when few dominate.

The weight of an unfinished prefix is a guess, the *twist*; a finished point is weighed by the energy itself,
so any twist is correct and a good one is cheap. Without a twist nothing is known before the end, and points
are resampled only as they finish.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Particles:
    """`twist(prefix)` guesses -E of the finished point; prefixes are weighed every `block` tokens, and resampled
    where the effective sample size falls below `threshold` times the draws."""

    twist: Callable[[Sequences], Tensor] | None = None
    threshold: float = 0.5
    block: int = 1

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        cloud = _Cloud(target, prompts, draws, rng)
        while True:
            cloud.extend()
            if cloud.length % self.block == 0 or not cloud.growing():
                cloud.weigh(self.twist)
                if cloud.growing():
                    cloud.resample(self.threshold)
            if not cloud.growing():
                return cloud.draws()
            cloud.advance()


class _Cloud:
    """P * N growing points. Rows that are `open_` own one row of the base's state each, in order."""

    def __init__(self, target: Tilted, prompts: Sequences, draws: int, rng: Rng):
        self.target, self.rng, self.shape = target, rng, (len(prompts), draws)
        rows = prompts.repeat(draws)
        device = rows.tokens.device
        self.start = rows.start
        self.tokens = torch.nn.functional.pad(rows.tokens, (0, target.space.max_length))
        self.stop = rows.start.clone()
        self.open_ = torch.ones(len(rows), dtype=torch.bool, device=device)
        self.closing = torch.zeros_like(self.open_)  # ended since the last weighing
        self.log_base = torch.zeros(len(rows), dtype=torch.float64, device=device)
        self.guess = torch.zeros(len(rows), dtype=torch.float64, device=device)
        self.log_weight = torch.zeros(self.shape, dtype=torch.float64, device=device)
        self.length, self.cost = 0, len(rows)
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
        ended = self.target.space.ends(token) | (self.length == self.target.space.max_length)
        self.slot = (~ended).nonzero()[:, 0]  # rows of the state that go on
        self.closing[rows[ended]] = True
        self.open_[rows[ended]] = False

    def weigh(self, twist: Callable[[Sequences], Tensor] | None) -> None:
        """Replace each row's guess: by the truth where the point has ended, by the twist where it goes on."""
        guess = self.guess.clone()
        if bool(self.closing.any()):
            guess[self.closing] = self.target.log_weight(self.points(self.closing)).double()
        if twist is not None and bool(self.open_.any()):
            guess[self.open_] = _finite(twist(self.points(self.open_)).double())
        change = torch.where(guess == -torch.inf, guess, guess - self.guess)
        self.log_weight = self.log_weight + change.view(self.shape)
        self.guess, self.closing = guess, torch.zeros_like(self.closing)

    def resample(self, threshold: float) -> None:
        """Where few draws of a prompt carry the weight, copy them over the others; the mean weight stays."""
        share = torch.softmax(self.log_weight, -1)
        few = 1 / (share**2).sum(-1) < threshold * self.shape[1]
        if not bool(few.any()):
            return
        ancestor = torch.arange(len(self.start), device=self.start.device).view(self.shape)
        first = ancestor[few, :1]
        ancestor[few] = first + self.rng.categorical(self.log_weight[few], self.shape[1])
        mean = torch.logsumexp(self.log_weight, -1, keepdim=True) - math.log(self.shape[1])
        self.log_weight = torch.where(few[:, None], mean, self.log_weight)
        ancestor = ancestor.view(-1)
        slot_of = torch.full_like(ancestor, -1)
        slot_of[self.open_] = self.slot
        self.slot = slot_of[ancestor][self.open_[ancestor]]
        for name in ("tokens", "stop", "open_", "log_base", "guess"):
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
        log_weight, log_base = self.log_weight.cpu(), self.log_base.view(self.shape).cpu()
        return Draws(self.points(every), log_weight, log_base, estimates_z=True, independent=False, cost=self.cost)


def _finite(twist: Tensor) -> Tensor:
    if not bool(torch.isfinite(twist).all()):
        raise ValueError(
            "A twist must be finite: it gave infinity or NaN for a prefix, which would forbid points that the target "
            "allows. The draws were dropped; return a large negative number instead."
        )
    return twist
