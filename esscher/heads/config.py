"""Settings that all networks share, without torch: how the width scales, and how hidden vectors become distributions."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar, get_args

OutputKind = Literal["softmax", "mos", "moc"]
TiedProjections = Literal["none", "tails", "all"]
Modality = Literal["text", "translation", "image"]
C = TypeVar("C", bound="WidthScaling")  # not Self, which beartype refuses in single methods


@dataclass(frozen=True)
class WidthScaling:
    """Networks of one kind at another width, for comparisons at equal parameter counts (`esscher.bases.scaling`)."""

    scaled_widths: ClassVar[tuple[str, ...]] = ()  # names of the settings that grow in proportion to `width`

    width: int
    """Size of the hidden vectors."""

    @property
    def width_multiple(self) -> int:
        """The number that divides every valid width."""
        return 1

    def with_width(self: C, width: int) -> C:
        """The same settings at another width; `scaled_widths` grow in proportion, and None stays None."""
        sizes = {name: getattr(self, name) for name in self.scaled_widths}
        scaled = {name: round(size * width / self.width) for name, size in sizes.items() if size is not None}
        return replace(self, width=width, **scaled)


@dataclass(frozen=True, kw_only=True)
class HeadConfig(WidthScaling):
    """The output of a network: a softmax, a mixture of softmaxes or contexts, or an adaptive softmax (`cutoffs`)."""

    modality: ClassVar[Modality] = "text"

    output: OutputKind = "softmax"
    """Output distribution: softmax, mixture of softmaxes (mos) or mixture of contexts (moc)."""
    components: int = 15
    """Number of components of a mixture."""
    latent_width: int | None = None
    """Width of the context vectors of a mixture; default: the width of the tied embeddings, or of the hidden vectors."""
    latent_dropout: float = 0.0
    """Dropout rate of the context vectors of a mixture."""
    floor: float = 0.0
    """Constant added to every probability of a mixture of softmaxes; the released MoS code uses 1e-8."""
    min_prior: float = 0.0
    """Components of a mixture of softmaxes whose prior is lower are left out."""
    cutoffs: tuple[int, ...] = ()
    """First token of each further cluster of an adaptive input and softmax; empty: no clusters."""
    div_value: int = 1
    """Factor by which the vectors of each cluster are narrower than those of the one before."""
    tied_projections: TiedProjections = "tails"
    """Clusters of an adaptive softmax that share the projection of the adaptive input."""

    def check_head(self, *, shared: int | None) -> None:
        """Refuse invalid settings; `shared` is the width of the embeddings if they are the output weights."""
        for name, kinds in (("output", OutputKind), ("tied_projections", TiedProjections)):
            check_choice(name, getattr(self, name), get_args(kinds))
        if min(self.components, self.div_value) < 1 or (self.latent_width is not None and self.latent_width < 1):
            raise ValueError(f"components, div_value and latent_width are at least 1: {self}.")
        if min(self.floor, self.min_prior) < 0 or max(self.floor, self.min_prior, self.latent_dropout) >= 1:
            raise ValueError(f"floor, min_prior and latent_dropout lie in [0, 1): {self}.")
        if self.output != "mos" and (self.floor or self.min_prior):
            raise ValueError(
                f"Only a mixture of softmaxes has floor and min_prior, not output = {self.output!r}; leave them out."
            )
        if self.output != "softmax" and self.cutoffs:
            raise ValueError(f"A mixture has no clusters, so cutoffs = {self.cutoffs} need output = 'softmax'; leave one out.")
        weights = self.width if self.output == "softmax" else self.latent_width
        if shared is not None and weights not in (None, shared):
            raise ValueError(f"Tied weights need vectors of one width: the output has {weights}, the embeddings {shared}.")


@dataclass(frozen=True)
class LayeredConfig(HeadConfig):
    """A network whose number of layers is a setting."""

    layers: int = 4
    """Number of layers."""


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"Unknown {name} {value!r}; the known ones are {', '.join(choices)}.")


def check_sizes(width: int, layers: int, *dropouts: float) -> None:
    """Refuse a network without units or layers, and dropout rates outside [0, 1)."""
    if width < 1 or layers < 1:
        raise ValueError(f"A network has at least one unit and one layer, not width {width} and {layers} layers.")
    for rate in dropouts:
        if not 0 <= rate < 1:
            raise ValueError(f"A dropout rate lies in [0, 1), not {rate}.")
