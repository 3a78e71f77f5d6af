"""The settings of `esscher translate`, `esscher evaluate` and `esscher rescore`, without torch."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from esscher.core.config import Texts, check_at_least, check_choices
from esscher.decoding.registry import DECODERS
from esscher.workflow.config.load import PlacementConfig


@dataclass(frozen=True)
class TranslateConfig:
    """Every line has its translation at the same place. An empty line stays empty, and a source longer than those that the
    model was trained on is cut; both are reported on standard error. With an energy, the decoder takes it into account."""

    sentences: Texts = ()
    """What to translate; or give a file."""
    file: str | None = field(default=None, kw_only=True)
    """A text file to translate line by line; - is standard input."""
    out: str | None = field(default=None, kw_only=True)
    """File for the translations, a line each; - prints each line on standard output as soon as it is translated."""
    resume: bool = field(default=False, kw_only=True)
    """Go on where `out` ends."""
    references: str | None = field(default=None, kw_only=True)
    """File with the right translation of each line; adds BLEU and chrF."""
    decoder: Annotated[Any, DECODERS] = field(default_factory=DECODERS.default, kw_only=True)
    """How a translation is chosen."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        if (self.file is None) == (not self.sentences):
            raise ValueError("Either sentences or a file are translated. Nothing was translated; name one of both.")


@dataclass(frozen=True)
class EvaluateConfig:
    """Metrics of a translation over all lines, with intervals; differences with a p-value."""

    hypotheses: str
    """File with a translation a line; lines may be empty."""
    references: tuple[str, ...]
    """File with the right text of each line; several files are several references."""
    metrics: tuple[str, ...] = field(default=("bleu", "chrf"), kw_only=True, metadata={"multiple": True})
    """bleu, chrf, chrf++, ter, wer, rouge1, rouge2, rougeL, meteor."""
    against: str | None = field(default=None, kw_only=True)
    """File with another translation of the same lines, to compare with."""
    sources: str | None = field(default=None, kw_only=True)
    """File with what was translated, for values by its length."""
    bounds: tuple[int, ...] = field(default=(25, 50), kw_only=True, metadata={"multiple": True})
    """Words of a source at which groups of lengths begin."""
    confidence: float = field(default=0.95, kw_only=True)
    """Coverage of the intervals."""
    resamples: int = field(default=1_000, kw_only=True)
    """Resamples of the lines for the intervals of BLEU, chrF, TER and word error rate."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""


@dataclass(frozen=True)
class RescoreConfig(PlacementConfig):
    """The best candidate of each list by weighted scores: those in the lists, the log-probability of the base, minus the
    energy, the number of words. The format of lists is described in docs/guide/rescoring.md."""

    lists: str
    """File of n-best lists, jsonl or jsonl.gz; or one that `out` wrote."""
    base: str | None = field(default=None, kw_only=True)
    """Folder of the base; None to use only the scores in the lists."""
    energy: str | None = field(default=None, kw_only=True)
    """Folder of the energy that tilts the base; or `self`, the logsumexp of the base's own logits."""
    eos: str | None = field(default=None, kw_only=True)
    """Token that ends a text; by default that of the Hugging Face folder."""
    tune: str | None = field(default=None, kw_only=True)
    """File of lists to tune the weights on; by default a share of the lists themselves."""
    tune_share: float = field(default=0.5, kw_only=True)
    """Share of the lists to tune on, chosen by a hash of their ids; the others are the test."""
    top: int | None = field(default=None, kw_only=True)
    """Use only so many first candidates of each list."""
    lowercase: bool = field(default=False, kw_only=True)
    """Read candidates and references in lower case."""
    metric: Literal["wer", "bleu"] = field(default="wer", kw_only=True)
    """What weights are tuned for, and systems compared by."""
    out: str | None = field(default=None, kw_only=True)
    """File for the lists with their scores, a line as soon as it is done; an interrupted run goes on there."""
    weights: str | None = field(default=None, kw_only=True)
    """File with weights to choose by, as JSON, instead of tuning; all lists are then the test."""
    weights_out: str | None = field(default=None, kw_only=True)
    """File for the tuned weights."""
    chosen: str | None = field(default=None, kw_only=True)
    """File for the chosen text of each test list, as jsonl."""
    confidence: float = field(default=0.95, kw_only=True)
    """Coverage of the intervals."""
    seed: int = field(default=0, kw_only=True)
    """Seed of everything random; printed back."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "top", note=" Nothing was done.")
        if self.tune is not None and self.weights is not None:
            raise ValueError("Weights are given, so there is nothing to tune. Nothing was done; leave tune or weights out.")
        if self.base is None and (self.energy is not None or self.out is not None):
            raise ValueError(
                "Nothing can be scored without a base. Nothing was done; name a base, or leave energy and out away."
            )
