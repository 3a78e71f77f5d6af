"""The settings of a proposal, which other verbs have among theirs, without torch."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ProposalConfig:
    """From which model candidates are drawn, instead of the base."""

    proposal: Any = None
    """Folder of a plain model to draw from instead of the base, such as the student of this tilt; its draws are weighted by
    a(x) exp(-E(x)) / q(x). In Python also a model that is loaded."""
    proposal_base_share: float = 0.1
    """Share of the draws that the base makes beside the proposal: it bounds the weights where the proposal hardly draws what
    the target has. 0 is the proposal alone."""

    def check_proposal_share(self) -> None:
        """Refuse a share that is none."""
        if not 0 <= self.proposal_base_share < 1:
            raise ValueError(
                f"proposal_base_share is at least 0 and below 1, not {self.proposal_base_share}. Nothing was drawn."
            )
