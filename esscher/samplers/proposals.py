"""Proposals: draws of any base q over the space of the target, with the weights a(x) exp(-E(x)) / q(x). Every sampler takes its
draws from here (`propose`; `ProposalSteps` token by token), so all of them take the same proposals: a distilled student, a
tempered or constrained base, a mixture of one of these with the base (`defensive`).

The weights are proper only if q reaches every point that the target reaches. A base that drops tokens (top-k, top-p, a
restricted first token, an automaton with forbidden letters) is therefore refused, unless the base of the target drops the
same, or the caller vouches for it (`AssumeCovering`).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.mixture import MixtureBase
from esscher.bases.truncated import Truncated
from esscher.core.draws import Draws
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Base, BaseWrapper, State, Tilted, drops_tokens, name_of, unwrapped
from esscher.energies.twist import TwistedBase
from esscher.samplers.ancestral import draw
from esscher.samplers.scoring import log_prob, log_weight

BASE_SHARE = 0.1  # of a defensive mixture, by default


@dataclass(frozen=True)
class AssumeCovering(BaseWrapper):
    """A proposal that drops tokens, of which the caller states that it reaches all that the target reaches: for instance
    because the energy forbids the rest."""

    @property
    def drops_tokens(self) -> bool:
        return False


def defensive(base: Base, proposal: Base, *, base_share: float = BASE_SHARE) -> MixtureBase:
    """The mixture base_share * a + (1 - base_share) * q, whose weights are at most exp(-E(x)) / base_share (Hesterberg, 1995):
    it reaches all that the base reaches, however thin the tails of q are."""
    if not 0 < base_share < 1:
        raise ValueError(f"The share of the base in a mixture is above 0 and below 1, not {base_share}. Nothing was drawn.")
    check_space(base, proposal)
    return MixtureBase((base, proposal), (base_share, 1 - base_share))


@torch.no_grad()
def propose(target: Tilted, prompts: Sequences, draws: int, proposal: Base | None = None, *, rng: Rng) -> Draws:
    """Independent draws of the proposal, by default of the target's base, weighted towards the target."""
    source = check_proposal(target, proposal)
    x, log_proposal = draw(source, prompts, draws, rng=rng)
    log_base = log_proposal if proposal is None else log_prob(target.base, x).view(log_proposal.shape)
    log_tilt = log_weight(target, x).view(log_proposal.shape) + log_base - log_proposal
    ratio = max_log_ratio(target.base, proposal)
    return Draws(x, log_tilt, log_base, estimates_z=True, independent=True, cost=len(x), max_log_ratio=ratio)


def check_space(base: Base, proposal: Base) -> None:
    """Refuse a proposal over other sequences than those of the base."""
    if proposal.space != base.space:
        raise ValueError(
            f"The proposal draws from {proposal.space}, and the target is over {base.space}. Nothing was drawn; propose "
            f"from a base with the same tokens, end symbol and max_length."
        )


def check_proposal(target: Tilted, proposal: Base | None) -> Base:
    """The base to draw from; a proposal over another space, or one that may miss points of the target, is refused."""
    if proposal is None:
        return target.base
    check_space(target.base, proposal)
    if drops_tokens(proposal) and not _drop_the_same(unwrapped(proposal), unwrapped(target.base)):
        raise ValueError(
            f"The proposal {name_of(unwrapped(proposal))} gives some tokens probability 0, and the base of the target does not "
            f"drop the same ones: what it cannot draw would be missing without a trace. Nothing was drawn; propose from it "
            f"without top_k, top_p or another restriction, mix it with the base (`defensive(base, proposal)`), truncate the "
            f"base of the target likewise, or, if it reaches all that the target does, pass AssumeCovering(proposal)."
        )
    return proposal


def _drop_the_same(proposal: Base, base: Base) -> bool:
    """Whether two bases give probability 0 to the same tokens: they are one base, or truncations of one to the same tokens."""
    if proposal is base:
        return True
    if not isinstance(proposal, Truncated) or not isinstance(base, Truncated):
        return False
    same_base = unwrapped(proposal.base) is unwrapped(base.base)
    same_order = proposal.temperature == base.temperature or proposal.top_p is None  # no temperature changes the top k
    return same_base and same_order and (proposal.top_k, proposal.top_p) == (base.top_k, base.top_p)


def max_log_ratio(base: Base, proposal: Base | None) -> float:
    """The largest log a(x) / q(x) of all points: 0 for the base itself, -log of its share in a mixture, else infinity."""
    if proposal is None or unwrapped(proposal) is unwrapped(base):
        return 0.0
    mixture = unwrapped(proposal)
    if not isinstance(mixture, MixtureBase):
        return math.inf
    parts = zip(mixture.components, mixture.mixture_weights, strict=True)
    share = sum(weight for part, weight in parts if unwrapped(part) is unwrapped(base))
    return -math.log(share) if share > 0 else math.inf


class ProposalSteps:
    """The proposal and the base of the target token by token: next-token log-probabilities of both, and their states. The base
    is stepped once where it is its own proposal, and where a learnt twist of it proposes."""

    def __init__(self, target: Tilted, proposal: Base | None):
        self.base, self.proposal = check_proposal(target, proposal), proposal
        self.scored = target.base
        self.twisted = isinstance(proposal, TwistedBase) and proposal.base is target.base

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B V"], State]:
        """Log-probabilities of the first token under proposal and base, and the state after the prompt."""
        log_proposal, state = self.base.begin(prompts)
        if self.proposal is None or self.twisted:
            return log_proposal, state.log_base if self.twisted else log_proposal, state
        log_base, scored = self.scored.begin(prompts)
        return log_proposal, log_base.to(log_proposal.device), (state, scored)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B V"], State]:
        """The same after one more token of each row."""
        if self.proposal is None or self.twisted:
            log_proposal, state = self.base.advance(state, token)
            return log_proposal, state.log_base if self.twisted else log_proposal, state
        log_proposal, proposed = self.base.advance(state[0], token)
        log_base, scored = self.scored.advance(state[1], token)
        return log_proposal, log_base, (proposed, scored)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        """A copy of the state of the chosen rows."""
        if self.proposal is None or self.twisted:
            return self.base.select(state, index)
        return self.base.select(state[0], index), self.scored.select(state[1], index)
