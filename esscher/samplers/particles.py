"""Sequential Monte Carlo: extend all draws of a prompt together, weigh the prefixes, resample when few dominate.

The weight of an unfinished prefix is a guess, the *twist*; a finished point is weighed by the energy itself,
so any twist is correct and a good one is cheap (`esscher.samplers.twists` makes one of the energy). Without a twist nothing is
known before the end, and points are resampled only as they finish.

Pruning: a run may start with more prefixes than it ends with, and halve them block by block. The strongest prefix meets the
weakest, the second strongest the second weakest; of each pair one goes on, with probability its share of the two weights, and
carries their mean. Any pairing keeps the weights proper, the total is kept exactly, and no prefix is ever doubled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.samplers.ancestral import rows_at_once
from esscher.samplers.resampling import ancestors
from esscher.samplers.scores import by_rows, log_weight
from esscher.space import Sequences, concatenate
from esscher.target import Tilted


@dataclass(frozen=True)
class Particles:
    """`twist(prefix)` guesses -E of the finished point; prefixes are weighed every `block` tokens, and resampled
    where the effective sample size falls below `threshold` times the draws.

    A run starts with 2^`halvings` prefixes for each draw and keeps half of them at the end of each block, until one is left
    for each draw; a prefix given up counts in `cost` by the part of a point it had.
    """

    twist: Callable[[Sequences], Tensor] | None = None
    threshold: float = 0.5
    block: int = 1
    halvings: int = 0

    def __post_init__(self) -> None:
        if self.block < 1 or self.halvings < 0:
            raise ValueError(f"A block has at least 1 token, and prefixes are halved 0 times or more: {self}.")

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        together = max(1, rows_at_once(target.space) // (draws * 2**self.halvings))
        return _below_each_other([self._run(target, group, draws, rng) for group in prompts.split(together)])

    def _run(self, target: Tilted, prompts: Sequences, draws: int, rng: Rng) -> Draws:
        cloud = _Cloud(target, prompts, draws * 2**self.halvings, rng)
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
        self.length, self.lost = 0, 0  # tokens of a row, and tokens of all rows that were given up
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
            guess[self.closing] = log_weight(self.target, self.points(self.closing)).to(guess.device)
        if twist is not None and bool(self.open_.any()):
            guess[self.open_] = _finite(by_rows(twist, self.points(self.open_))).to(guess.device)
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
        ancestor[few] = first + ancestors(self.log_weight[few], self.shape[1], rng=self.rng)
        mean = torch.logsumexp(self.log_weight, -1, keepdim=True) - math.log(self.shape[1])
        self.log_weight = torch.where(few[:, None], mean, self.log_weight)
        self._keep(ancestor.view(-1))

    def halve(self) -> None:
        """Of the strongest and the weakest draw of a prompt keep one by weight, and so on inwards; the mean weight stays."""
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
        """Go on with these rows; the states follow at the next `advance`."""
        slot_of = torch.full_like(self.start, -1)
        slot_of[self.open_] = self.slot
        self.slot = slot_of[ancestor][self.open_[ancestor]]
        for name in ("tokens", "start", "stop", "open_", "closing", "log_base", "guess"):
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
        given_up = math.ceil(self.lost * len(every) / int((self.stop - self.start).sum()))
        return Draws(self.points(every), weights, log_base, estimates_z=True, independent=False, cost=len(every) + given_up)


def _below_each_other(parts: Sequence[Draws]) -> Draws:
    """Draws of different prompts as one."""
    return Draws(
        concatenate([part.x for part in parts]),
        torch.cat([part.log_weight for part in parts]),
        torch.cat([part.log_base for part in parts]),
        estimates_z=True,
        independent=False,
        cost=sum(part.cost for part in parts),
    )


def _finite(twist: Tensor) -> Tensor:
    if not bool(torch.isfinite(twist).all()):
        raise ValueError(
            "A twist must be finite: it gave infinity or NaN for a prefix, which would forbid points that the target "
            "allows. The draws were dropped; return a large negative number instead."
        )
    return twist
