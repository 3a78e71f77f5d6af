"""Multilevel splitting: the probability that the score of a draw reaches a threshold, where direct draws hardly ever do.

A score of every prefix leads to the event. From direct draws one learns how much a score still grows after each position, so
that score + growth (`Guide`) says early which prefixes may reach the threshold. A run draws particles from the base. At each
level it keeps those with a prefix at that level, copies them, and draws each copy again after the first such prefix: what is
left is exactly the base given that the level was reached, and no draw is rejected. The product of the shares that reach each
level is an unbiased estimate of the probability, as long as levels and numbers of particles are fixed before the run
(Glasserman et al., 1999; Del Moral, 2004; Cerou and Guyader, 2007). A pilot, whose particles are dropped, fixes them.

Several prompts are one space: a particle is a prompt, each with an equal part of the first particles, and a text after it. The
prompts that carry the event take over the particles; the estimate is the mean over the prompts.

Letters beside those of `esscher.core.space`: R runs, K levels, L positions of a point.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate
from esscher.core.target import Base
from esscher.samplers.ancestral import draw, redraw

SURVIVING = 0.25  # share of the particles that should reach the next level
FEWEST = 0.1  # share from which on the threshold itself is the next level
SURVIVORS = 12  # particles of the pilot that must have reached a level
PATIENCE = 16  # rounds in which the pilot waits for them
FITTED = 20  # draws that must go on after a position for their growth to be known

PrefixScores = Callable[[Sequences], Float[Tensor, "B L"]]
"""Scores of the first 1, 2, ... tokens of each point, in float64 on the CPU. The columns from its last token on hold the score
of the whole point; a column before it may be -inf, where the score is not known."""


@dataclass(frozen=True)
class Guide:
    """An event, score >= threshold, with the mean growth of the score after each position of a draw that goes on."""

    scores: PrefixScores
    threshold: float
    growth: Float[Tensor, "L"]

    @classmethod
    def fit(cls, scores: PrefixScores, threshold: float, x: Sequences) -> "Guide":
        """The growth is the mean over the draws x; where fewer than `FITTED` go on, it is that of the position before."""
        table, lengths = scores(x), x.lengths.cpu()
        growth, last = torch.zeros(table.shape[1], dtype=torch.float64), 0.0
        for position in range(table.shape[1]):
            known = (lengths > position + 1) & (table[:, position] > -torch.inf)
            if int(known.sum()) >= FITTED:
                last = float((table[known, -1] - table[known, position]).mean())
            growth[position] = last
        return cls(scores, threshold, growth)

    def __call__(self, x: Sequences) -> Float[Tensor, "B L"]:
        """What the score of each prefix is expected to become; just below the threshold at most, unless it is there at the end,
        where the score itself counts."""
        table, lengths = self.scores(x), x.lengths.cpu()
        width = table.shape[1]
        growth = torch.nn.functional.pad(self.growth, (0, max(0, width - len(self.growth))))[:width]
        below = math.nextafter(self.threshold, -math.inf)
        ended = torch.arange(1, width + 1) >= lengths[:, None]
        return torch.where(ended, table, (table + growth).clamp(max=below))


@dataclass(frozen=True)
class Particles:
    """Points with what their prefixes are expected to reach."""

    x: Sequences
    expected: Float[Tensor, "B L"]

    @property
    def reached(self) -> Float[Tensor, "B"]:
        """The highest level of each particle: the threshold or more only where the event happened."""
        return self.expected.amax(-1)

    def rows(self, index: Int[Tensor, "K"]) -> "Particles":
        return Particles(self.x.rows(index.to(self.x.tokens.device)), self.expected[index])

    @staticmethod
    def cat(parts: "Sequence[Particles]") -> "Particles":
        width = max(part.expected.shape[1] for part in parts)
        tables = [_widened(part.expected, width) for part in parts]
        return Particles(concatenate([part.x for part in parts]), torch.cat(tables))


@dataclass(frozen=True)
class Ladder:
    """The levels, of which the last is the threshold; and by the pilot, the share of particles that reach each of them from the
    one before, and the tokens of a particle of each stage, at least those of a draw."""

    levels: tuple[float, ...]
    shares: tuple[float, ...]
    costs: tuple[float, ...]

    def particles(self, tokens: float) -> tuple[int, ...]:
        """The particles of each stage of a run that costs about so many tokens: the numbers with the least variance if stages
        were independent, so more where fewer reach the next level, or where they cost less."""
        rates = list(zip(self.shares, self.costs, strict=True))
        spread = [math.sqrt((1 - share) / share / cost) for share, cost in rates]
        spread = [max(value, max(spread) / 8, 1e-9) for value in spread]
        total = sum(value * cost for value, cost in zip(spread, self.costs, strict=True))
        return tuple(max(2, int(tokens * value / total)) for value in spread)


@dataclass(frozen=True)
class Splits:
    """What runs of splitting found: particles that reached each level, and those that showed the event at the end."""

    reached: Int[Tensor, "R K"]
    particles: tuple[int, ...]
    roots: Int[Tensor, "R"]  # first particles from which those with the event come
    x: Sequences  # of all runs, the particles with the event
    run: Int[Tensor, "B"]
    tokens: int  # that the base read or drew

    @property
    def log_probability(self) -> Float[Tensor, "R"]:
        """The log of the estimate of each run; -inf where no particle reached the threshold."""
        return (self.reached.double() / torch.tensor(self.particles)).log().sum(-1)


def first_particles(base: Base, guide: Guide, prompts: Sequences, count: int, *, runs: int = 1, rng: Rng) -> Particles:
    """`count` draws of the base for each run, run by run, spread evenly over the prompts; the prompts that get one more than
    the others are chosen at random for each run."""
    x = spread_draws(base, prompts, count, runs=runs, rng=rng)
    return Particles(x, guide(x))


def spread_draws(base: Base, prompts: Sequences, count: int, *, runs: int = 1, rng: Rng) -> Sequences:
    """The sequences of `first_particles`."""
    each, rest = divmod(count, len(prompts))
    parts, run = list[Sequences](), list[Tensor]()
    if each:
        parts.append(draw(base, prompts, runs * each, rng=rng)[0])
        run.append(torch.arange(runs).repeat_interleave(each).repeat(len(prompts)))
    if rest:
        chosen = torch.cat([rng.permutation(len(prompts))[:rest] for _ in range(runs)])
        parts.append(draw(base, prompts.rows(chosen.to(prompts.tokens.device)), 1, rng=rng)[0])
        run.append(torch.arange(runs).repeat_interleave(rest))
    order = torch.cat(run).argsort(stable=True)
    return concatenate(parts).rows(order.to(prompts.tokens.device))


def split(
    base: Base, guide: Guide, prompts: Sequences, ladder: Ladder, particles: Sequence[int], *, runs: int = 1, rng: Rng
) -> Splits:
    """Independent runs of splitting, all at once; a run of which no particle reaches a level ends there."""
    now = first_particles(base, guide, prompts, particles[0], runs=runs, rng=rng)
    tokens = int(now.x.lengths.sum())
    run = torch.arange(runs).repeat_interleave(particles[0])
    root = torch.arange(len(run))
    reached = torch.zeros(runs, len(ladder.levels), dtype=torch.long)
    for stage, level in enumerate(ladder.levels):
        alive = now.reached >= level
        reached[:, stage] = torch.bincount(run[alive], minlength=runs)
        if stage + 1 == len(ladder.levels) or not bool(alive.any()):
            break
        going = reached[:, stage].nonzero()[:, 0].tolist()
        index = torch.cat([copies(alive & (run == number), particles[stage + 1], rng=rng) for number in going])
        now, run, root = now.rows(index), run[index], root[index]
        now, cost = regrow(base, guide, now, level, rng=rng)
        tokens += cost
    event = (now.reached >= guide.threshold).nonzero()[:, 0]
    roots = torch.bincount(torch.unique(root[event]) // particles[0], minlength=runs)
    return Splits(reached, tuple(particles), roots, now.rows(event).x, run[event], tokens)


def copies(alive: Bool[Tensor, "B"], count: int, *, rng: Rng) -> Int[Tensor, "{count}"]:
    """`count` rows among those that are alive, each as often as the others or once more; which of them, is random."""
    rows = alive.nonzero()[:, 0]
    rows = rows[rng.permutation(len(rows))]
    return rows[torch.arange(count) % len(rows)]


def regrow(base: Base, guide: Guide, now: Particles, level: float, *, rng: Rng) -> tuple[Particles, int]:
    """Draw each particle again after its first prefix at the level, and count the tokens that the base read or drew. A particle
    that reached the level with its last token stays."""
    prefix = (now.expected >= level).to(torch.uint8).argmax(-1) + 1
    open_ = (prefix < now.x.lengths.cpu()).nonzero()[:, 0]
    if len(open_) == 0:
        return now, 0
    x, _ = redraw(base, now.rows(open_).x, prefix[open_], rng=rng)
    new = Particles(x, guide(x))
    row = torch.arange(len(prefix))
    row[open_] = len(prefix) + torch.arange(len(open_))
    return Particles.cat([now, new]).rows(row), int(x.lengths.sum())


def next_level(reached: Float[Tensor, "B"], level: float, threshold: float) -> tuple[float, float] | None:
    """The level above `level` that a share near `SURVIVING` of the particles reached, and that share; None if fewer than
    `SURVIVORS` are above. The threshold is taken as soon as a share of `FEWEST` reached it."""
    total, at_end = len(reached), int((reached >= threshold).sum())
    if at_end >= max(SURVIVORS, FEWEST * total):
        return threshold, at_end / total
    values = torch.unique(reached[(reached > level) & (reached < threshold)])
    above = total - torch.searchsorted(reached.sort().values, values)
    values, above = values[above >= SURVIVORS], above[above >= SURVIVORS]
    if len(values) == 0:
        return (threshold, at_end / total) if at_end >= SURVIVORS else None
    best = int((above.double().log() - math.log(SURVIVING * total)).abs().argmin())
    return float(values[best]), float(above[best]) / total


def plan_levels(
    base: Base, guide: Guide, now: Particles, particles: int, *, budget: float, rng: Rng
) -> tuple[Ladder, bool, int]:
    """The levels from `now`, draws of the base, to the threshold, whether they got there, and the tokens that it took, at most
    `budget` or little more. Where too few particles reach a higher level, they are drawn again, and all count."""
    level, tokens, pool = -math.inf, 0, [now]
    levels, shares, costs = list[float](), list[float](), [max(1.0, float(now.x.lengths.double().mean()))]
    while True:
        reached = torch.cat([part.reached for part in pool])
        chosen = next_level(reached, level, guide.threshold)
        if chosen is not None:
            level = chosen[0]
            levels, shares = [*levels, level], [*shares, chosen[1]]
            if level == guide.threshold:
                return Ladder(tuple(levels), tuple(shares), tuple(costs)), True, tokens
            now = Particles.cat(pool).rows(copies(reached >= level, particles, rng=rng))
            now, cost = regrow(base, guide, now, level, rng=rng)
            pool, tokens, costs = [now], tokens + cost, [*costs, max(costs[0], cost / particles)]
            continue
        again, cost = pool[-1], 0
        if tokens < budget and len(pool) <= PATIENCE and levels:
            again, cost = regrow(base, guide, pool[-1], level, rng=rng)
        if cost == 0:
            return Ladder(tuple(levels), tuple(shares), tuple(costs[: len(levels)])), False, tokens
        pool, tokens = [*pool, again], tokens + cost


def _widened(table: Float[Tensor, "B L"], width: int) -> Float[Tensor, "B W"]:
    """The table with its last column, the whole point, repeated up to a width."""
    return torch.cat([table, table[:, -1:].expand(-1, width - table.shape[1])], 1)
