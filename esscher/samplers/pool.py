"""Resampling from a pool: draw n candidates, keep one with probability proportional to its weight.

With candidates of the base and a top-k truncated base this is the top-k joint sampling of Deng et al. (2020). At a finite pool
the law q of a draw lies between the base and the target p. With chi2 the relative variance of the weights under the
proposal, Jensen's inequality bounds how far it still is,

    KL(p || q) <= log(1 + chi2 / n),       about 1 / (effective sample size of the pool),

so a pool that is effective e times over is within about 1/e nats. `AdaptivePool` chooses n by that, prompt by prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.draws import Draws, Sampler
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences, concatenate
from esscher.target import Tilted


@dataclass(frozen=True)
class Chosen:
    """Candidates of Q prompts and the columns of those that became draws, `pool` of them standing for each draw."""

    prompt: Int[Tensor, "Q"]  # the places of these prompts among all that were asked for
    candidates: Draws
    pick: Int[Tensor, "Q N"]
    pool: int
    effective: Float[Tensor, "Q N"]  # sample size of the pool behind each draw
    enough: Bool[Tensor, "Q"]  # whether the pool was large enough, as far as a pilot could tell
    independent: bool  # of the draws, given the prompt


@dataclass(frozen=True)
class Pool:
    """Each draw is one survivor of its own `pool` candidates; biased towards the base at a finite pool.

    With `shared` all draws of a prompt are chosen from the same candidates, independently of each other given these: each
    draw follows the same law, at a fraction of the price, but one pool's luck is in all of them. Candidates may be any
    sampler whose weights are proper.
    """

    pool: int
    candidates: Sampler = field(default_factory=Importance)
    shared: bool = False

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ValueError(f"A pool has at least one candidate, not {self.pool}.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return survivors(self.choose(target, prompts, draws, rng=rng))

    def choose(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> list[Chosen]:
        """The same draws together with the candidates they were chosen from: one `Chosen` for all prompts."""
        pools = 1 if self.shared else draws
        found = self.candidates(target, prompts, pools * self.pool, rng=rng)
        log_weight = found.log_weight.view(len(prompts) * pools, self.pool)
        if bool((log_weight == -torch.inf).all(-1).any()):
            raise ValueError(
                f"A pool of {self.pool} candidates has no weight at all: the energy forbids every one of them. The "
                f"draws were dropped; raise `pool`, or propose from a base that meets the constraint more often."
            )
        pick = rng.categorical(log_weight, draws // pools).view(len(prompts), draws)
        column = pick if self.shared else torch.arange(draws) * self.pool + pick
        effective = 1 / (torch.softmax(log_weight, -1) ** 2).sum(-1).view(len(prompts), pools)
        every = torch.arange(len(prompts))
        enough = torch.ones(len(prompts), dtype=torch.bool)
        independent = found.independent and (draws == 1 or not self.shared)
        return [Chosen(every, found, column, self.pool, effective.expand(-1, draws), enough, independent)]


@dataclass(frozen=True)
class AdaptivePool:
    """Pools as large as each prompt needs: a pilot grows until no candidate holds more than 1 / `effective` of its weight.

    That is stricter than an effective sample size of as many, which it implies. The pilot only decides the size; the draws
    are chosen from fresh pools, so their law is that of `Pool(n)` averaged over the n found. Choosing from the pilot itself
    would be biased further: a pool that happens to lack the rare heavy candidates looks even, and would stop too soon.
    Prompts whose pilot reaches `largest` candidates first are told by `info["enough"]`.
    """

    effective: float
    smallest: int = 16
    largest: int = 4096
    shared: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest:
            raise ValueError(f"Pools grow from smallest >= 1 to largest, not from {self.smallest} to {self.largest}.")
        if not 1 <= self.effective <= self.largest:
            raise ValueError(f"No pool of up to {self.largest} candidates is effective {self.effective} times over.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return survivors(self.choose(target, prompts, draws, rng=rng))

    def choose(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> list[Chosen]:
        """The same draws with their candidates: one `Chosen` for all prompts whose pools have the same size."""
        size, enough, cost = self.pilot(target, prompts, rng=rng)
        found = []
        for pool in sorted(set(size.tolist())):
            here = (size == pool).nonzero()[:, 0]
            sampler = Pool(pool, shared=self.shared)
            (group,) = sampler.choose(target, prompts.rows(here.to(prompts.tokens.device)), draws, rng=rng)
            candidates = replace(group.candidates, cost=group.candidates.cost + int(cost[here].sum()))
            found.append(replace(group, prompt=here, candidates=candidates, enough=enough[here]))
        return found

    def pilot(
        self, target: Tilted, prompts: Sequences, *, rng: Rng
    ) -> tuple[Int[Tensor, "P"], Bool[Tensor, "P"], Int[Tensor, "P"]]:
        """The size of the pools of each prompt, whether it is enough, and what finding out cost."""
        size = torch.zeros(len(prompts), dtype=torch.long)
        total, largest = (torch.full((len(prompts),), -torch.inf, dtype=torch.float64) for _ in range(2))
        waiting, wanted, cost = torch.arange(len(prompts)), self.smallest, torch.zeros_like(size)
        while len(waiting):
            rows = prompts.rows(waiting.to(prompts.tokens.device))
            drawn = Importance()(target, rows, wanted - int(size[waiting[0]]), rng=rng)
            total[waiting] = torch.logaddexp(total[waiting], torch.logsumexp(drawn.log_weight, -1))
            largest[waiting] = torch.maximum(largest[waiting], drawn.log_weight.amax(-1))
            size[waiting], cost[waiting] = wanted, cost[waiting] - (-drawn.cost // len(waiting))
            uneven = ~((largest - total).exp() <= (1 + 1e-9) / self.effective)  # no weight at all is uneven, too
            if wanted == self.largest:
                break
            waiting, wanted = uneven.nonzero()[:, 0], min(2 * wanted, self.largest)
        return size, ~uneven, cost


def survivors(found: Sequence[Chosen]) -> Draws:
    """The chosen candidates as plain draws, prompt by prompt in the order asked for."""
    order = torch.cat([group.prompt for group in found]).argsort()
    draws = found[0].pick.shape[1]
    rows = [torch.arange(len(group.pick))[:, None] * group.candidates.log_weight.shape[1] + group.pick for group in found]
    device = found[0].candidates.x.tokens.device
    x = concatenate([group.candidates.x.rows(row.view(-1).to(device)) for group, row in zip(found, rows, strict=True)])
    place = (order[:, None] * draws + torch.arange(draws)).view(-1)
    log_base = torch.cat([group.candidates.log_base.gather(1, group.pick) for group in found])[order]
    info = {
        "effective": torch.cat([group.effective for group in found])[order],
        "pool": torch.cat([torch.full_like(group.prompt, group.pool) for group in found])[order],
        "enough": torch.cat([group.enough for group in found])[order],
    }
    return Draws(
        x.rows(place.to(device)),
        torch.zeros_like(log_base),
        log_base,
        estimates_z=False,
        independent=all(group.independent for group in found),
        cost=sum(group.candidates.cost for group in found),
        info=info,
    )
