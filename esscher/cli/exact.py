"""`esscher exact`: entropies and counts of processes and languages without sampling error, in nats; the end symbol counts."""

import math
from dataclasses import dataclass, field

from esscher.core.config import check_at_least
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.reports.report import Report


@dataclass(frozen=True, kw_only=True)
class StringsConfig:
    """Strings of one length over an alphabet."""

    length: int = 30
    """Symbols of each string, the end symbol not counted."""
    alphabet: str = "01"
    """The symbols."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "length")


@dataclass(frozen=True, kw_only=True)
class MotifConfig(StringsConfig):
    """Strings of one length that contain a motif: their number and the entropies of the processes, in nats."""

    motif: str
    """The string that must appear."""
    mixture: float = 0.9
    """Share of strings with the motif in the mixture process."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression; a class of its own so that it comes before the settings of the strings."""

    pattern: str
    """A regular expression over the alphabet."""


@dataclass(frozen=True)
class LanguageConfig(StringsConfig, Pattern):
    """Strings of one length that match a pattern: how many, their share, the entropy of a uniform choice among them."""

    search: bool = field(default=False, kw_only=True)
    """The pattern may match anywhere, instead of the whole string."""


@dataclass(frozen=True, kw_only=True)
class NgramConfig:
    """A character n-gram model of real text: its own entropy and mean length, exactly, and its perplexity on held-out text."""

    data: DataConfig = field(default_factory=DataConfig)
    order: int = 3
    """Characters in an n-gram."""
    length: int = 100
    """Longest text, the end symbol counted; longer ones are cut."""


def motif(settings: MotifConfig) -> Report:
    """Number of the strings with a motif, and entropies of the pure and the mixture process."""
    from esscher.exact.counting import check_motif, count_strings, motif_entropy

    check_motif(settings.motif, settings.length, settings.alphabet, settings.mixture)
    counts, symbols = count_strings(settings.motif, settings.length, settings.alphabet), settings.length + 1
    pure, mixed = motif_entropy(counts, None), motif_entropy(counts, settings.mixture)
    facts = {
        "motif": settings.motif, "length": settings.length, "alphabet": settings.alphabet, "count": counts[0],
        "log_z": pure, "entropy": pure, "entropy_per_symbol": pure / symbols,
        "mixture": settings.mixture, "mixture_entropy": mixed, "mixture_entropy_per_symbol": mixed / symbols,
        "symbols_counted": symbols,
    }  # fmt: skip
    return Report("motif process (exact, nats; the end symbol counts)", facts, {})


def language(settings: LanguageConfig) -> Report:
    """Number, share and entropy of the strings that match a pattern."""
    from esscher.exact.dynamic_programming import entropy
    from esscher.exact.languages import matching_strings

    match = "search" if settings.search else "full"
    nats = float(entropy(matching_strings(settings.pattern, settings.length, settings.alphabet, match=match)))
    facts = {
        "pattern": settings.pattern, "length": settings.length, "alphabet": settings.alphabet,
        "log_count": nats, "log_share": nats - settings.length * math.log(len(settings.alphabet)),
        "entropy_per_symbol": nats / (settings.length + 1), "symbols_counted": settings.length + 1,
    }  # fmt: skip
    return Report("strings that match (exact, nats; the end symbol counts)", facts, {})


def ngram(settings: NgramConfig) -> Report:
    """Entropy and mean length of an n-gram model of the data, and its cross-entropy on the test split."""
    from esscher.bases.ngram import fit_ngram
    from esscher.core.target import Tilted
    from esscher.estimators.perplexity import cross_entropy
    from esscher.exact.dynamic_programming import entropy, mean_length
    from esscher.workflow.config.train import TrainRun
    from esscher.workflow.processors import prepare_data

    tokenizer, length = TokenizerConfig("character"), LengthConfig(settings.length)
    splits = prepare_data(TrainRun("", data=settings.data, tokenizer=tokenizer, length=length))
    model = fit_ngram(splits.train, splits.space, settings.order)
    nats, mean = float(entropy(model)), float(mean_length(model))
    facts = {
        "data": settings.data.source, "order": settings.order, "characters": splits.space.vocab_size,
        "entropy": nats, "mean_length": mean, "entropy_per_symbol": nats / mean,
        "held_out_nats_per_symbol": cross_entropy(Tilted(model), splits.test)["token"],
    }  # fmt: skip
    return Report("character n-gram model (exact, nats; the end symbol counts)", facts, {})
