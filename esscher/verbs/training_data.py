"""What a run learns from: the data of its settings as sequences, with their space and tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from esscher.data.docstrings import docstring_splits
from esscher.data.images import Codec
from esscher.data.parallel import Pairs, pair_points, read_pairs, split_pairs
from esscher.data.processes import draw_sets
from esscher.data.sources import NAMES, Splits, Texts, read_raw, read_texts, split_by_hash, split_by_place, split_raw
from esscher.data.streams import decode_part
from esscher.data.text import TextSet, text_chunks, text_points
from esscher.data.tokenizers import KINDS, Tokenizer, character_tokenizer, load_tokenizer, train_tokenizer
from esscher.estimate import Estimate
from esscher.exact.languages import motif_process
from esscher.randomness import Rng
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.train import TrainRun
from esscher.space import Sequences, Space


@dataclass(frozen=True)
class Material:
    """Sequences to learn from, to choose by and to judge by; `units` are the sizes of the test sequences by unit."""

    space: Space
    train: Sequences
    validation: Sequences
    test: Sequences
    units: Mapping[str, Tensor]
    text: Tokenizer | None
    description: str
    truth: tuple[tuple[str, Estimate], ...] = ()  # what is known exactly of the source
    codec: Codec | None = None  # of images, in place of a tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """What text became tokens by; an error of images, which have none."""
        if self.text is None:
            raise ValueError("The run learnt from images, which have no tokenizer. They are turned to points by `codec`.")
        return self.text


def prepare(run: TrainRun, *, rng: Rng) -> Material:
    """Read or draw the data; `rng` matters for processes only."""
    if run.data.motif is not None:
        return _process(run.data, run.data.motif, rng)
    if run.data.target is not None:
        return _pairs(run.data, run.data.target, run.vocabulary, run.length)
    return _text(read_splits(run.data), run.vocabulary, run.length)


def read_splits(data: DataConfig) -> Splits:
    """The texts of a source in three parts."""
    if data.source == "docstrings":
        return docstring_splits()
    if data.split == "raw":
        return Splits(*(Texts((decode_part(part),), data.source) for part in read_raw_splits(data)))
    whole = read_whole(data, data.source)
    if data.validation is None or data.test is None:
        split = split_by_hash if data.split == "hash" else split_by_place
        return split(whole, held_out=data.held_out)
    return Splits(whole, read_whole(data, data.validation), read_whole(data, data.test))


def read_whole(data: DataConfig, source: str) -> Texts:
    """All texts of a source, in the manner of these settings."""
    keep_empty = data.empty == "keep"
    return read_texts(source, column=data.column, unit=data.unit, separator=data.separator, keep_empty=keep_empty)


def read_raw_splits(data: DataConfig) -> tuple[bytes, bytes, bytes]:
    """The bytes of a source in three parts."""
    whole = read_raw(data.source)
    if data.validation is None or data.test is None:
        return split_raw(whole, held_out=data.held_out)
    return whole, read_raw(data.validation), read_raw(data.test)


def choose_tokenizer(config: TokenizerConfig, texts: Texts) -> Tokenizer:
    """Trained on the texts, or loaded from a folder."""
    if config.kind in KINDS:
        return train_tokenizer(config.kind, texts.texts, vocab_size=config.vocab_size, cutoff=config.cutoff)
    if "/" not in config.kind and "\\" not in config.kind:
        known = ", ".join(KINDS)
        raise ValueError(f"Unknown tokenizer {config.kind!r}; the known ones are {known}, or a folder such as ./{config.kind}.")
    return load_tokenizer(config.kind)


def read_parallel(data: DataConfig, target: str) -> tuple[Pairs, Pairs, Pairs]:
    """The pairs of a source in three parts."""
    whole = read_pairs(data.source, target, column=data.column)
    if data.validation is None or data.test is None:
        return split_pairs(whole, held_out=data.held_out)
    validation, test = (read_pairs(one, target, column=data.column) for one in (data.validation, data.test))
    return whole, validation, test


def _pairs(data: DataConfig, target: str, choice: TokenizerConfig, length: LengthConfig) -> Material:
    """Points after sources; both sides share one tokenizer."""
    if length.chunks:
        raise ValueError("Pairs are whole texts and are not cut into chunks. Nothing was read; leave length.chunks out.")
    splits = read_parallel(data, target)
    both = Texts((*splits[0].sources, *splits[0].targets), splits[0].name)
    tokenizer = choose_tokenizer(choice, both)
    sets = [pair_points(pairs, tokenizer, longest=length.tokens) for pairs in splits]
    space = Space(tokenizer.vocab_size, length.tokens, tokenizer.eos)
    return _material(
        space, sets, tokenizer, [f"{pairs}; {_left(one, length)}" for pairs, one in zip(splits, sets, strict=True)]
    )


def _left(made: TextSet, length: LengthConfig) -> str:
    """What became of pairs, their targets counted."""
    sizes = f"{int(made.tokens.sum()):,} tokens, {int(made.words.sum()):,} words of targets"
    return f"{len(made):,} used ({sizes}), {made.cut:,} of more than {length.tokens} tokens left out"


def _text(splits: Splits, choice: TokenizerConfig, length: LengthConfig) -> Material:
    tokenizer = choose_tokenizer(choice, splits.train)
    sets = [_cut(texts, tokenizer, length) for texts in splits]
    point = length.tokens - length.given
    space = Space(tokenizer.vocab_size, point, None if length.chunks else tokenizer.eos)
    lines = [f"{texts}: {made}" for texts, made in zip(splits, sets, strict=True)]
    return _material(space, sets, tokenizer, lines)


def _material(space: Space, sets: Sequence[TextSet], tokenizer: Tokenizer, lines: Sequence[str]) -> Material:
    """The three sets, and what is told of each."""
    description = "\n".join(f"- {name}: {line}" for name, line in zip(NAMES, lines, strict=True))
    train, validation, test = sets
    return Material(space, train.x, validation.x, test.x, test.units(), tokenizer, description)


def _cut(texts: Texts, tokenizer: Tokenizer, length: LengthConfig) -> TextSet:
    if length.chunks:
        return text_chunks(texts.texts, tokenizer, length=length.tokens, given=length.given)
    return text_points(texts.texts, tokenizer, max_length=length.tokens, longer=length.longer)


def _process(data: DataConfig, motif: str, rng: Rng) -> Material:
    """A motif process, whose entropy is known."""
    mixture = None if data.mixture == 1 else data.mixture
    process = motif_process(motif, data.length, data.alphabet, mixture)
    sets = draw_sets(process.base, data.size, rng=rng)
    tokenizer = character_tokenizer(data.alphabet, eos=len(data.alphabet), unknown=False)
    share = "" if mixture is None else f", in a share {mixture} of them"
    description = (
        f"Strings of {data.length} symbols over {data.alphabet!r} that contain {process.motif!r}{share}: {len(sets.train):,} "
        f"to learn from, {len(sets.validation):,} to choose by, {len(sets.test):,} to judge by."
    )
    truth = Estimate.exact(process.entropy_per_symbol, unit="nats per symbol")
    units = {"token": sets.test.lengths}
    known = (("entropy of the process", truth),)
    return Material(process.space, sets.train, sets.validation, sets.test, units, tokenizer, description, known)
