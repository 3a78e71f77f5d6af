"""Sampling-importance-resampling (SIR): draw n candidates, keep one with probability proportional to its weight. With a top-k
truncated base this is the top-k joint sampling of Deng et al. (2020). The law q of a draw is not exactly the target p: KL(p ||
q) <= log(1 + chi2 / n), about 1 / (effective sample size of the candidates), with chi2 the relative variance of the weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.config import check_at_least
from esscher.core.draws import Draws, Sampler, checked_sampler, ess
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate
from esscher.core.target import Base, Tilted
from esscher.samplers.importance import Importance

Evidence = Callable[[Draws], Tensor]
"""For each prompt whether its weighted candidates agree with what is known of the target: `Draws -> Bool[Tensor, "P"]`."""


@dataclass(frozen=True)
class CandidateSelection:
    """The candidates of Q prompts, and the columns of those that became draws."""

    prompt: Int[Tensor, "Q"]  # positions of these prompts among all prompts of the call
    candidates: Draws
    selected: Int[Tensor, "Q N"]
    num_candidates: int  # for each draw
    ess: Float[Tensor, "Q N"]  # effective sample size of the candidates of each draw
    large_enough: Bool[Tensor, "Q"]  # whether the candidates were enough, as far as a pilot can tell
    independent: bool  # whether the draws are independent, given the prompt


@checked_sampler
@dataclass(frozen=True)
class SIR:
    """SIR with a fixed number of candidates: biased towards the base, less so as `num_candidates` grows."""

    num_candidates: int = 64
    """Candidates of each draw; with `shared`, of each prompt."""
    candidates: Sampler | None = None
    """The sampler of the candidates, whose weights must be proper; None is `Importance(proposal)`."""
    shared: bool = True
    """Choose all draws of a prompt from the same candidates: each draw follows the same law at a fraction of the cost, but the
    draws are independent only given the candidates."""
    proposal: Base | None = None
    """The base that candidates are drawn from; None is the base of the target."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_candidates", note=" Nothing was drawn.")
        if self.candidates is not None and self.proposal is not None:
            raise ValueError(
                "SIR has a sampler of candidates and a proposal of its own. Nothing was drawn; give the proposal to the "
                "sampler of the candidates, or leave that out."
            )

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return selected_draws(self.choose(target, prompts, draws, rng=rng))

    def choose(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> list[CandidateSelection]:
        """The same draws together with their candidates: one selection for all prompts."""
        sets = 1 if self.shared else draws
        sampler = self.candidates or Importance(self.proposal)
        candidates = sampler(target, prompts, sets * self.num_candidates, rng=rng)
        log_weight = candidates.log_weight.view(len(prompts) * sets, self.num_candidates)
        if bool((log_weight == -torch.inf).all(-1).any()):
            raise ValueError(
                f"The energy forbids all {self.num_candidates} candidates of a draw. The draws were dropped; raise "
                f"num_candidates, or propose from a base that meets the constraint more often."
            )
        selected = rng.categorical(log_weight, draws // sets).view(len(prompts), draws)
        column = selected if self.shared else torch.arange(draws) * self.num_candidates + selected
        ess_of_draw = ess(torch.softmax(log_weight, -1)).view(len(prompts), sets).expand(-1, draws)
        every, enough = torch.arange(len(prompts)), torch.ones(len(prompts), dtype=torch.bool)
        independent = candidates.independent and (draws == 1 or not self.shared)
        return [CandidateSelection(every, candidates, column, self.num_candidates, ess_of_draw, enough, independent)]


@checked_sampler
@dataclass(frozen=True)
class AdaptiveSIR:
    """SIR with as many candidates as each prompt needs, found by a pilot run.

    The pilot doubles its candidates until none holds more than 1 / `min_ess` of their weight, and `evidence`, if there is any,
    agrees with them. The draws are chosen from fresh candidates, because a pilot that lacks the rare heavy ones stops too soon;
    these are doubled, too, while evidence does not agree. `info["large_enough"]` is False where `max_candidates` did not
    suffice.
    """

    min_ess: float = 16.0
    """Draw candidates until none holds more than 1 / this of their weight."""
    min_candidates: int = 16
    """Candidates that the pilot starts with."""
    max_candidates: int = 4096
    """Candidates at most."""
    shared: bool = True
    """Choose all draws of a prompt from the same candidates."""
    proposal: Base | None = None
    """The base that candidates are drawn from; None is the base of the target."""
    evidence: Evidence | None = None
    """Which prompts' candidates show what is known of the target, such as its stored log Z; None asks for nothing."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "min_ess", "min_candidates", "max_candidates", note=" Nothing was drawn.")
        least, most = self.min_candidates, self.max_candidates
        if not 1 <= least <= most:
            raise ValueError(
                f"Candidates grow from min_candidates >= 1 to max_candidates, not from {least} to {most}. Nothing was drawn."
            )
        if not 1 <= self.min_ess <= most:
            raise ValueError(
                f"min_ess lies between 1 and max_candidates = {most}: no {most} candidates have {self.min_ess}. Nothing was "
                f"drawn."
            )

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return selected_draws(self.choose(target, prompts, draws, rng=rng))

    def choose(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> list[CandidateSelection]:
        """The same draws with their candidates: one selection for all prompts with the same number of candidates."""
        size, large_enough, cost = self.pilot(target, prompts, rng=rng)
        selections = []
        while len(waiting := (size > 0).nonzero()[:, 0]):
            num_candidates = int(size[waiting].min())
            here = (size == num_candidates).nonzero()[:, 0]
            sampler = SIR(num_candidates, shared=self.shared, proposal=self.proposal)
            (group,) = sampler.choose(target, prompts.rows(here.to(prompts.tokens.device)), draws, rng=rng)
            agrees = self._agrees(group.candidates)
            done = agrees | (num_candidates == self.max_candidates)
            cost[here] += group.candidates.cost // len(here)
            size[here] = torch.where(done, 0, min(2 * num_candidates, self.max_candidates))
            if bool(done.any()):
                group = _some_prompts(replace(group, prompt=here, large_enough=large_enough[here] & agrees), done)
                candidates = replace(group.candidates, cost=int(cost[group.prompt].sum()))
                selections.append(replace(group, candidates=candidates))
        return selections

    def _agrees(self, candidates: Draws) -> Bool[Tensor, "P"]:
        every = torch.ones(len(candidates.log_weight), dtype=torch.bool)
        return every if self.evidence is None else every & self.evidence(candidates)

    def pilot(
        self, target: Tilted, prompts: Sequences, *, rng: Rng
    ) -> tuple[Int[Tensor, "P"], Bool[Tensor, "P"], Int[Tensor, "P"]]:
        """The number of candidates for each prompt, whether it is large enough, and the cost of the pilot."""
        size = torch.zeros(len(prompts), dtype=torch.long)
        total, largest = (torch.full((len(prompts),), -torch.inf, dtype=torch.float64) for _ in range(2))
        waiting, wanted, cost = torch.arange(len(prompts)), self.min_candidates, torch.zeros_like(size)
        seen: list[Draws] = []  # candidates of the prompts that wait, where evidence is asked for
        lacking = torch.zeros(len(prompts), dtype=torch.bool)
        while len(waiting):
            rows = prompts.rows(waiting.to(prompts.tokens.device))
            drawn = Importance(self.proposal)(target, rows, wanted - int(size[waiting[0]]), rng=rng)
            total[waiting] = torch.logaddexp(total[waiting], torch.logsumexp(drawn.log_weight, -1))
            largest[waiting] = torch.maximum(largest[waiting], drawn.log_weight.amax(-1))
            size[waiting], cost[waiting] = wanted, cost[waiting] - (-drawn.cost // len(waiting))
            uneven = ~((largest - total).exp() <= (1 + 1e-9) / self.min_ess)  # True, too, where all weights are 0
            if self.evidence is not None:
                seen = [Draws.cat([*seen, drawn], 1)]
                lacking[waiting] = ~self._agrees(seen[0])
            if wanted == self.max_candidates:
                break
            still = (uneven | lacking)[waiting]
            seen = [_rows_of_prompts(part, still) for part in seen]
            waiting, wanted = waiting[still], min(2 * wanted, self.max_candidates)
        return size, ~(uneven | lacking), cost


def _rows_of_prompts(draws: Draws, chosen: Bool[Tensor, "P"]) -> Draws:
    """The draws of some of the prompts, with their share of the cost."""
    count, each = draws.log_weight.shape
    rows = torch.arange(count * each).view(count, each)[chosen].reshape(-1).to(draws.x.tokens.device)
    cost = round(draws.cost * int(chosen.sum()) / count)
    log_weight, log_base = draws.log_weight[chosen], draws.log_base[chosen]
    return replace(draws, x=draws.x.rows(rows), log_weight=log_weight, log_base=log_base, cost=cost, info={})


def _some_prompts(group: CandidateSelection, chosen: Bool[Tensor, "Q"]) -> CandidateSelection:
    """The selection for some of its prompts."""
    if bool(chosen.all()):
        return group
    columns = {name: getattr(group, name)[chosen] for name in ("prompt", "selected", "ess", "large_enough")}
    return replace(group, candidates=_rows_of_prompts(group.candidates, chosen), **columns)


def selected_draws(selections: Sequence[CandidateSelection]) -> Draws:
    """The selected candidates as draws of equal weight, in the order of the prompts."""
    order = torch.cat([group.prompt for group in selections]).argsort()
    draws, device = selections[0].selected.shape[1], selections[0].candidates.x.tokens.device
    points = []
    for group in selections:
        first = torch.arange(len(group.selected))[:, None] * group.candidates.log_weight.shape[1]
        points.append(group.candidates.x.rows((first + group.selected).view(-1).to(device)))
    x = concatenate(points).rows((order[:, None] * draws + torch.arange(draws)).view(-1).to(device))
    log_base = torch.cat([group.candidates.log_base.gather(1, group.selected) for group in selections])[order]
    info = {
        "ess": torch.cat([group.ess for group in selections])[order],
        "num_candidates": torch.cat([torch.full_like(group.prompt, group.num_candidates) for group in selections])[order],
        "large_enough": torch.cat([group.large_enough for group in selections])[order],
    }
    independent, cost = all(group.independent for group in selections), sum(group.candidates.cost for group in selections)
    return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=False, independent=independent, cost=cost, info=info)
