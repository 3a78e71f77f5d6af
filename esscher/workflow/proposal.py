"""The proposal of a verb: the plain model that its settings name, mixed with the base, and given to a sampler."""

from dataclasses import dataclass, fields, replace
from typing import Any

from esscher.core.draws import Sampler
from esscher.core.target import Base, Tilted
from esscher.samplers.proposals import check_space, defensive
from esscher.samplers.registry import SAMPLERS
from esscher.training.made_with import proposal_digests
from esscher.workflow.config.load import BaseConfig
from esscher.workflow.config.proposal import ProposalConfig
from esscher.workflow.model import Model, load_model


@dataclass(frozen=True)
class NamedProposal:
    """A model to draw from, and the share of the draws that the base makes beside it."""

    model: Model
    base_share: float

    @property
    def name(self) -> str:
        """What to call it in reports, and to load it by."""
        return self.model.name

    @property
    def facts(self) -> dict[str, Any]:
        """What a report says of it."""
        return {"proposal": self.name, "proposal_base_share": self.base_share}

    @property
    def made_with(self) -> dict[str, Any]:
        """What kept draws of it belong to."""
        return {**proposal_digests(self.model.base), "proposal_base_share": self.base_share}

    def base_for(self, target: Tilted) -> Base:
        """The base to draw candidates of this target from."""
        plain: Base = self.model.base
        return defensive(target.base, plain, base_share=self.base_share) if self.base_share else plain


def named_proposal(model: Model, settings: ProposalConfig) -> NamedProposal | None:
    """The proposal that the settings name, a folder or a model, on the device of the model; None where they name none."""
    settings.check_proposal_share()
    if settings.proposal is None:
        if settings.proposal_base_share != ProposalConfig().proposal_base_share:
            raise ValueError("proposal_base_share is for a proposal, and none is named. Nothing was drawn; name one.")
        return None
    student = settings.proposal
    if not isinstance(student, Model):
        cut = replace(model.chunking, max_length=model.base.space.max_length)
        student = load_model(BaseConfig(str(settings.proposal), device=str(model.device), **vars(cut)))
    if student.is_tilted:
        raise ValueError(
            f"The proposal {student.name} is tilted, so it cannot be drawn from directly. Nothing was drawn; propose from a "
            f"plain model, such as its student (`distil`)."
        )
    check_space(model.base, student.base)
    return NamedProposal(student, settings.proposal_base_share)


def with_proposal(sampler: Sampler, proposal: Base | None) -> Any:
    """The sampler with this proposal; one that takes none, or has one, is refused."""
    if proposal is None:
        return sampler
    settings: Any = sampler
    if "proposal" not in {field.name for field in fields(settings)}:
        able = [name for name, kind in SAMPLERS.items() if "proposal" in {field.name for field in fields(kind.config_class)}]
        raise ValueError(
            f"{type(sampler).__name__} takes no proposal. Nothing was drawn; choose a sampler that weighs candidates "
            f"({', '.join(able)}), or leave the proposal out."
        )
    if settings.proposal is not None:
        raise ValueError("The sampler has a proposal, and the settings name another. Nothing was drawn; give one of both.")
    return replace(settings, proposal=proposal)
