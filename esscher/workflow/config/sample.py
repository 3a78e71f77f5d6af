"""The settings of `esscher sample` and `esscher score`, without torch."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from esscher.core.config import Texts, check_at_least
from esscher.core.truncation import Truncation
from esscher.samplers.registry import SAMPLERS
from esscher.workflow.config.proposal import ProposalConfig


@dataclass(frozen=True)
class ImageSampleConfig:
    """For a model of images: what is given of them."""

    classes: tuple[int, ...] = ()
    """Classes to draw; all by default."""
    complete: str | None = None
    """A source of images, such as digits, whose upper rows are given; the rest is drawn."""
    rows: int | None = None
    """How many rows are given; half of them by default."""
    count: int = 8
    """How many images to complete, the first ones."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "count", note=" Nothing was drawn.")


@dataclass(frozen=True)
class SampleConfig(ProposalConfig, Truncation):
    """Draw sequences after each prompt, or from nothing: each with its log-probability under the base, its energy and, where
    they differ, its log-weight. A tilted model draws from candidates of the base; a line says whether they were enough, and
    `show_candidates` adds them by their share of the weight, `chosen` being the draws that each became. Images are a grid in a
    PNG."""

    prompts: Texts = field(default=(), metadata={"flag": "--prompt"})
    """Texts to continue; may be given several times. By default none, or the prompt that the energy was fitted after."""
    draws: int = field(default=4, kw_only=True)
    """Draws for each prompt."""
    sampler: Annotated[Any, SAMPLERS] | None = field(default=None, kw_only=True)
    """Ancestral by default, adaptive-sir for a tilted model."""
    images: ImageSampleConfig = field(default_factory=ImageSampleConfig, kw_only=True)
    show_candidates: int = field(default=0, kw_only=True)
    """Also show so many candidates of each prompt, the largest share of the weight first, and those that became draws."""
    out: str | None = field(default=None, kw_only=True)
    """File for the draws, one JSON object a line; for images, the grid (samples.png in the model's folder by default)."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "draws", note=" Nothing was drawn.")
        self.check_proposal_share()
        _check_list("prompts", self.prompts)


@dataclass(frozen=True)
class ScoreConfig:
    """Log-probabilities of texts under the base; for a tilted model also their energies, and the log of the unnormalised tilted
    probability. End symbols count, prompts do not; a text that is longer than the model's sequences is refused."""

    texts: Texts = field(default=(), metadata={"flag": "--text"})
    """Texts to score; may be given several times."""
    prompts: Texts = field(default=(), kw_only=True, metadata={"flag": "--prompt"})
    """The prompt of each text, or one for all; none by default."""
    file: str | None = field(default=None, kw_only=True)
    """File with a text a line, instead of texts."""

    def __post_init__(self) -> None:
        _check_list("texts", self.texts)
        _check_list("prompts", self.prompts)
        if bool(self.texts) == (self.file is not None):
            raise ValueError("Either texts or a file with a text a line are scored. Nothing was done; name one of both.")


def _check_list(name: str, texts: object) -> None:
    """Refuse one text, whose characters would be taken for texts."""
    if isinstance(texts, str):
        raise ValueError(f"{name} is a list of texts, and {texts!r} is one text. Nothing was done; write [{texts!r}].")
