"""Regeneration moves: a Metropolis kernel that cuts a point at a random position, draws the rest again, and accepts or rejects.

The stationary density is a(x) exp(w(x)), where the log weight w is a function of a score of the whole point, such as -E(x): a
tilt has w = -E, a rung of a ladder w = -beta E, a level of a rare event w = 0 where the score reaches it and -inf below. The
cut c is uniform over the positions 0 to |x| - 1 of a point x of |x| tokens; the rest is drawn from the base, or from a proposal
q. With x' for the new point, whose cuts have another law if it has another length, a move is accepted with probability

    min(1, exp(w(x') - w(x)) |x| / |x'| r(x') / r(x)),    r(x) = product over t >= c of a(x_t | x_<t) / q(x_t | x_<t),

which is detailed balance for each c by itself; r is 1 where the rest is drawn from the base. The tokens before the cut stay, so
a move keeps what a strong tilt selects for more often than an independent draw would find it again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.device import on_device_of
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate, point_values, refuse_foreign
from esscher.core.target import Base, prompt_vocab_size
from esscher.samplers.ancestral import redraw, rows_at_once
from esscher.samplers.scoring import log_prob, score_in_batches

LogWeight = Callable[[Float[Tensor, "B"]], Float[Tensor, "B"]]
"""The log weight of each row from its score, in float64 on the CPU; -inf forbids."""


@dataclass(frozen=True)
class Chains:
    """The points of Markov chains, one a row, with what the next move needs."""

    x: Sequences
    score: Float[Tensor, "B"]
    log_base: Float[Tensor, "B"]  # log a(x)
    log_ratio: Float[Tensor, "B L"] | None = None  # log a - log q of each token by position; None if q is the base

    def rows(self, index: Int[Tensor, "K"]) -> "Chains":
        """The chosen chains, each as often as it is chosen: to resample."""
        ratio = None if self.log_ratio is None else self.log_ratio[index]
        return Chains(self.x.rows(index.to(self.x.tokens.device)), self.score[index], self.log_base[index], ratio)


@dataclass(frozen=True)
class Moves:
    """What some moves of all chains did and cost."""

    acceptance: Float[Tensor, "B"]  # share of the moves of each chain that were accepted
    proposed: int  # points that were proposed, and scored
    tokens_drawn: int
    tokens_read: int  # tokens before the cuts, which the base read again

    @property
    def tokens(self) -> int:
        """Tokens of the base, drawn or read."""
        return self.tokens_drawn + self.tokens_read


@dataclass(frozen=True)
class Regeneration:
    """The kernel for all densities that are functions of one score.

    kernel = Regeneration(target.base, target.log_weight)
    chains = kernel.start(x)
    chains, moves = kernel(chains, lambda score: 0.5 * score, moves=4, rng=rng)  # half of the tilt
    chains, moves = kernel(chains, at_least(2.0), moves=4, rng=rng)  # scores of 2 or more
    """

    base: Base
    score: Callable[[Sequences], Tensor]
    """A number for each row, which must not depend on padding or on other rows."""
    proposal: Base | None = None
    """Draw the rest of a point from it, over the same space; None is the base."""

    def __post_init__(self) -> None:
        if self.proposal is not None and self.proposal.space != self.base.space:
            raise ValueError(
                f"The proposal draws from {self.proposal.space}, and the base from {self.base.space}. Nothing was drawn; "
                f"propose from a base with the same tokens, end symbol and max_length."
            )

    def start(
        self, x: Sequences, *, score: Float[Tensor, "B"] | None = None, log_base: Float[Tensor, "B"] | None = None
    ) -> Chains:
        """Chains that start at these points; what is known of them is not computed again."""
        refuse_foreign(x, self.base.space, prompt_vocab_size=prompt_vocab_size(self.base))
        score = self._scores(x) if score is None else score.double().cpu()
        log_base = log_prob(self.base, x) if log_base is None else log_base.double().cpu()
        if self.proposal is None:
            return Chains(x, score, log_base)
        return Chains(x, score, log_base, token_log_probs(self.base, x) - token_log_probs(self.proposal, x))

    @torch.no_grad()
    def __call__(self, chains: Chains, log_weight: LogWeight, *, moves: int = 1, rng: Rng) -> tuple[Chains, Moves]:
        """`moves` moves of each chain, and what they did and cost."""
        accepted, drawn, read = torch.zeros(len(chains.x), dtype=torch.float64), 0, 0
        for _ in range(moves):
            cut = rng.categorical(_log_cut(chains.x))[:, 0]
            new = self._propose(chains.x, cut, rng)
            accept = rng.bernoulli(_log_acceptance(chains, new, cut, log_weight))
            drawn, read = drawn + int(new.x.lengths.sum()) - int(cut.sum()), read + int(cut.sum())
            accepted += accept
            chains = _choose(accept, new, chains)
        return chains, Moves(accepted / max(1, moves), moves * len(chains.x), drawn, read)

    def _propose(self, x: Sequences, cut: Int[Tensor, "B"], rng: Rng) -> Chains:
        new, log_proposal = redraw(self.base if self.proposal is None else self.proposal, x, cut, rng=rng)
        if self.proposal is None:
            return Chains(new, self._scores(new), log_proposal.double().sum(-1))
        log_base = token_log_probs(self.base, new)
        return Chains(new, self._scores(new), log_base.sum(-1), log_base - log_proposal.double())

    def _scores(self, x: Sequences) -> Float[Tensor, "B"]:
        score = score_in_batches(lambda rows: self.score(on_device_of(rows, self.score, self.base)), x)
        if bool(score.isnan().any()):
            raise ValueError(
                f"The score of {int(score.isnan().sum())} of {len(score)} points is not a number. No move was kept; correct "
                f"the score."
            )
        return score


def at_least(level: float) -> LogWeight:
    """The density of the base given that the score is `level` or more."""
    return lambda score: torch.zeros_like(score).masked_fill(score < level, -torch.inf)


def token_log_probs(base: Base, x: Sequences) -> Float[Tensor, "B L"]:
    """log a of each token by its position in the point, 0 after the end; in float64 on the CPU."""
    length, parts = base.space.max_length, []
    for rows in on_device_of(x, base).split(rows_at_once(base.space)):
        parts.append(point_values(rows, base.log_probs(rows), length).cpu().double())
    return torch.cat(parts)


def _log_cut(x: Sequences) -> Float[Tensor, "B L"]:
    """The law of the cut of each point, unnormalised: uniform over its positions."""
    lengths = x.lengths.cpu()
    position = torch.arange(int(lengths.max()))
    return torch.zeros(len(lengths), len(position), dtype=torch.float64).masked_fill(position >= lengths[:, None], -torch.inf)


def _log_acceptance(old: Chains, new: Chains, cut: Int[Tensor, "B"], log_weight: LogWeight) -> Float[Tensor, "B"]:
    gain = log_weight(new.score) - log_weight(old.score)
    gain = gain.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)  # between two forbidden points weights do not decide
    gain = gain + old.x.lengths.cpu().double().log() - new.x.lengths.cpu().double().log()
    if old.log_ratio is None or new.log_ratio is None:
        return gain
    after = torch.arange(new.log_ratio.shape[1]) >= cut[:, None]
    return gain + torch.where(after, new.log_ratio, 0.0).sum(-1) - torch.where(after, old.log_ratio, 0.0).sum(-1)


def _choose(accept: Bool[Tensor, "B"], new: Chains, old: Chains) -> Chains:
    """The new chain where it is accepted, and the old one elsewhere."""
    row = torch.arange(len(accept))
    row = torch.where(accept, row, row + len(accept))
    both = Chains(
        concatenate([new.x, old.x]),
        torch.cat([new.score, old.score]),
        torch.cat([new.log_base, old.log_base]),
        None if new.log_ratio is None or old.log_ratio is None else torch.cat([new.log_ratio, old.log_ratio]),
    )
    chosen = both.rows(row)
    return replace(chosen, x=chosen.x.without_padding())
