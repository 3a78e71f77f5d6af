"""The settings that all neural bases have in common, without torch: how distributions are made of hidden vectors."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What the settings of all networks have in common: how distributions are made of hidden vectors.

    `output` is a softmax, or a mixture of `components` softmaxes (MoS) or contexts (MoC); a mixture's contexts have the width
    `latent`, by default that of the weights they share or of the hidden vectors, and lose `latent_dropout` of themselves in
    training. `floor` is added to each probability of a mixture of softmaxes (the released code has 1e-8), and components
    whose prior is below `least_prior` are left out. `cutoffs` are those of an adaptive input and softmax, whose clusters are
    narrower by the factor `shrink`; `tied_projections` says which project the output as they project the input.
    """

    output: Literal["softmax", "softmaxes", "contexts"] = "softmax"
    components: int = 15
    latent: int | None = None
    latent_dropout: float = 0.0
    floor: float = 0.0
    least_prior: float = 0.0
    cutoffs: tuple[int, ...] = ()
    shrink: int = 1
    tied_projections: Literal["none", "tails", "all"] = "tails"

    def check_output(self, *, shared: int | None, width: int) -> None:
        """Refuse an output that cannot be; `shared` is the width of the input vectors if they are its weights."""
        if self.output not in OUTPUTS:
            raise ValueError(f"Unknown output {self.output!r}; the known ones are {', '.join(OUTPUTS)}.")
        if self.tied_projections not in ("none", "tails", "all"):
            raise ValueError(f"Unknown tied_projections {self.tied_projections!r}; the known ones are none, tails and all.")
        if min(self.components, self.shrink) < 1 or (self.latent is not None and self.latent < 1):
            raise ValueError(f"components, shrink and latent are at least 1: {self.components}, {self.shrink}, {self.latent}.")
        if min(self.floor, self.least_prior) < 0 or max(self.floor, self.least_prior, self.latent_dropout) >= 1:
            raise ValueError(f"floor, least_prior and latent_dropout lie in [0, 1): {self}.")
        if self.output != "softmaxes" and (self.floor or self.least_prior):
            raise ValueError(f"Only softmaxes have a floor and a least prior, not output = {self.output!r}; leave them out.")
        if self.output != "softmax" and self.cutoffs:
            raise ValueError(f"A mixture has no clusters, and cutoffs = {self.cutoffs} make some; leave one of them out.")
        weights = width if self.output == "softmax" else self.latent
        if shared is not None and weights not in (None, shared):
            raise ValueError(f"Tied weights need vectors of one width, and the output's have {weights}, not {shared}.")


OUTPUTS = ("softmax", "softmaxes", "contexts")


def check_sizes(width: int, layers: int, *dropouts: float) -> None:
    """Refuse a network without units or layers, and rates that are none."""
    if width < 1 or layers < 1:
        raise ValueError(f"A network has at least one unit and one layer, not width {width} and {layers} layers.")
    for rate in dropouts:
        if not 0 <= rate < 1:
            raise ValueError(f"A dropout rate lies in [0, 1), not {rate}.")
