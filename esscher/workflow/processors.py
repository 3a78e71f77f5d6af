"""Processors: how text, translations and images become sequences of a model, and how their numbers are shown.

A `Model` has one processor, which reads data in splits or as one set, encodes prompts, decodes draws, and turns cross-entropies
into perplexities per token, word and byte, or bits per dimension. `TextProcessor` documents the methods of all processors. Long
texts that are read as one stream with a memory are `StreamSplits`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.data.config import DataConfig, ImageConfig, LengthConfig, SourceConfig
from esscher.data.images import ImageArray, ImageCodec, load_codec, read_images
from esscher.data.sources import SPLIT_NAMES, Texts
from esscher.data.splits import (
    choose_tokenizer,
    codec_for,
    draw_splits,
    read_image_splits,
    read_pair_source,
    read_pair_splits,
    read_raw_splits,
    read_source,
    read_splits,
)
from esscher.data.text import (
    SegmentPairWindows,
    TextSet,
    TextStream,
    chunk_texts,
    decode_part,
    raw_stream,
    text_points,
    text_stream,
)
from esscher.data.tokenizers import Tokenizer, character_tokenizer
from esscher.data.translation_pairs import Pairs, encode_sources, pair_points
from esscher.estimators.perplexity import Measurement, as_bits, as_perplexity
from esscher.exact.hash_language import hash_process
from esscher.exact.languages import motif_process
from esscher.networks.xlnet import SPECIAL_SYMBOLS
from esscher.reports.plots import save_image_grid
from esscher.reports.report import write_lines
from esscher.training.stream_batches import TokenStream
from esscher.workflow.config.sample import ImageSampleConfig, SampleConfig
from esscher.workflow.config.train import TrainRun

DIMENSION, IMAGE = "dimension", "image"
MAX_TEST_STRINGS = 5000  # of a hash process
LABEL_WORDS = 6  # of a prompt, to recognise it by


@dataclass(frozen=True)
class EncodedSet:
    """Sequences of a model with their sizes by unit, and the data that they were read from."""

    x: Sequences
    units: Mapping[str, Tensor]
    description: str  # of the data
    eos: int | None = None  # the token that ends a text, where a sequence without it was cut

    def __len__(self) -> int:
        return len(self.x)

    def __str__(self) -> str:
        sizes = ", ".join(f"{int(size.sum()):,} {name}s" for name, size in self.units.items())
        return f"{len(self):,} sequences ({sizes}{f', {self.cut:,} of them cut' if self.cut else ''})"

    @property
    def cut(self) -> int:
        """How many of the sequences are shorter than their text."""
        last = self.x.tokens.gather(1, (self.x.stop - 1).clamp(min=0)[:, None])[:, 0]
        return 0 if self.eos is None else int((last != self.eos).sum())

    def rows(self, index: Any) -> "EncodedSet":
        """Some of the sequences."""
        units = {name: sizes[index] for name, sizes in self.units.items()}
        return replace(self, x=self.x.rows(index), units=units)


@dataclass(frozen=True)
class PromptSet:
    """Prompts to draw after, and what to call each."""

    labels: Sequence[Any]
    x: Sequences
    prompt_tokens: int | None = None  # tokens of the model's sequences that are a prompt, where an image is completed
    shown: tuple[NDArray[np.uint8], ...] = ()  # for each prompt, images to show before what was drawn after it


@dataclass(frozen=True)
class DataSplits:
    """Sequences for training, validation and test, the processor that made them, and what is known exactly of their source."""

    space: Space
    train: Sequences
    validation: Sequences
    test: Sequences
    units: Mapping[str, Tensor]  # sizes of the test sequences by unit
    processor: "TextProcessor | ImageProcessor"
    description: str
    truth: tuple[tuple[str, Estimate], ...] = ()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; an error for images, which have none."""
        return self.processor.tokenizer

    def measured(self, nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
        """What is reported of the test data: the usual numbers of the data's kind, and what is known exactly."""
        return {**self.processor.measured(nats), **dict(self.truth)}


@dataclass(frozen=True)
class TextProcessor:
    """Texts of their own, or, with `chunks`, chunks of a stream whose first `prompt_tokens` are the prompt."""

    tokenizer: Tokenizer
    space: Space
    prompt_tokens: int = 0
    samples_file: ClassVar[str | None] = None  # where draws are written in the model's folder, if no file is named

    @property
    def artifact(self) -> Tokenizer:
        """What is saved in the model's folder."""
        return self.tokenizer

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Prompts as tokens."""
        return self.tokenizer.encode(texts)

    def encode(self, texts: Sequence[str]) -> TextSet:
        """Texts as sequences of the model."""
        return chunk_texts(texts, self.tokenizer, self.space, prompt_tokens=self.prompt_tokens)

    def read(self, data: SourceConfig, trained: TrainRun | None) -> EncodedSet:
        """All sequences of a source; of the source of a training run, those held out for the test where it has them."""
        if data.target is not None:
            return TranslationProcessor(self.tokenizer, self.space).read(data, trained)
        texts = read_source(data if trained is None else data.with_defaults(trained.data))
        return self.encode_set(texts.texts, str(texts))

    def encode_set(self, texts: Sequence[str], description: str) -> EncodedSet:
        """Texts as sequences of the model with their sizes by unit."""
        encoded = self.encode(texts)
        return EncodedSet(encoded.x, encoded.units(), description, self.space.eos)

    def read_splits(self, data: DataConfig, trained: TrainRun | None) -> DataSplits:
        """The sequences of a source in three splits."""
        if data.is_drawn and trained is not None:
            return process_splits(data, rng=SeededRng(trained.training.seed).stream("data"))
        return self._splits([self.encode(texts.texts) for texts in read_splits(data)], data.source)

    def rows(self, models: Mapping[str, Mapping[str, Estimate] | None]) -> tuple[str, list[dict[str, Any]]]:
        """Cross-entropies in nats by model and unit as a table: its name and its rows."""
        return "perplexities", [
            {"model": name, "per": unit, "perplexity": value}
            for name, nats in models.items()
            if nats is not None
            for unit, value in as_perplexity(nats).items()
        ]

    def measurement_rows(self, measurement: Measurement) -> tuple[str, list[dict[str, Any]]]:
        """A measurement of base and tilted model as a table: its name and its rows."""
        return "perplexities", measurement.perplexities()

    def sample_prompts(self, settings: SampleConfig, trained: TrainRun | None) -> PromptSet:
        """What to draw after."""
        if settings.images != ImageSampleConfig():
            raise ValueError("The model is no model of images. Nothing was drawn; leave the settings of images out.")
        texts = list(settings.prompts) or [""]
        return PromptSet(texts, prompts_of(self.encode_prompts(texts)))

    def decode(self, points: Sequence[Sequence[int]]) -> list[str] | None:
        """Points as texts; None where they are no texts."""
        return self.tokenizer.decode([list(point) for point in points])

    def prompt_label(self, prompt: Sequence[int]) -> str:
        """A few words by which a reader recognises a prompt."""
        return " ".join(self.tokenizer.decode([list(prompt)])[0].split()[-LABEL_WORDS:])

    def same_tokens(self, other: object) -> bool:
        """Whether a token means the same to both, so that their models can be compared token by token."""
        vocab = self.tokenizer.backend.get_vocab()
        return isinstance(other, TextProcessor) and vocab == other.tokenizer.backend.get_vocab()

    def save_samples(self, file: Path, samples: Sequence[Any], tokens: Sequence[Sequence[int]], prompts: PromptSet) -> None:
        """Write draws: their rows as JSON lines, or their tokens, prompts included, as a grid of images."""
        write_lines(file, samples)

    def measured(self, nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
        """The numbers that are usual for text, by name."""
        return {f"perplexity per {unit}": value for unit, value in as_perplexity(nats).items()}

    def _splits(self, sets: Sequence[TextSet], description: str) -> DataSplits:
        train, validation, test = sets
        return DataSplits(self.space, train.x, validation.x, test.x, test.units(), self, description)


@dataclass(frozen=True)
class TranslationProcessor(TextProcessor):
    """Pairs of texts: the prompt is the source, the sequence its translation; both sides share one tokenizer."""

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        return encode_sources(texts, self.tokenizer)

    def encode(self, texts: Sequence[str]) -> TextSet:
        raise ValueError(
            "The model translates, so its data are pairs of texts. Nothing was done; name the translations, too "
            "(--data.target), or leave the data out where those that it was trained on will do."
        )

    def encode_pairs(self, pairs: Pairs) -> TextSet:
        """Targets as sequences of the model, after their sources."""
        return pair_points(pairs, self.tokenizer, longest=self.space.max_length)

    def read(self, data: SourceConfig, trained: TrainRun | None) -> EncodedSet:
        if data.target is None:
            self.encode(())
        pairs = read_pair_source(data)
        encoded = self.encode_pairs(pairs)
        return EncodedSet(encoded.x, encoded.units(), f"{pairs}, {encoded.cut:,} of them too long and left out", self.space.eos)

    def read_splits(self, data: DataConfig, trained: TrainRun | None) -> DataSplits:
        return self._splits([self.encode_pairs(pairs) for pairs in read_pair_splits(data)], data.source)


@dataclass(frozen=True)
class ImageProcessor:
    """Images as pixel values in raster order."""

    codec: ImageCodec
    samples_file: ClassVar[str | None] = "samples.png"

    @property
    def artifact(self) -> ImageCodec:
        return self.codec

    @property
    def tokenizer(self) -> Tokenizer:
        """Images have no tokenizer."""
        raise ValueError("A model of images has no tokenizer, so text cannot be read or shown. Nothing was done.")

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        raise ValueError("Images have no text for a prompt. Nothing was drawn; use --images.classes or --images.complete.")

    def encode(self, images: ImageArray) -> Sequences:
        """Images as sequences of the model, made smaller if they are so many times as large."""
        side = images.values.shape[1] // self.codec.rows
        return self.codec.encode(images.shrunk(side) if side > 1 else images)

    def read(self, data: SourceConfig, trained: TrainRun | None) -> EncodedSet:
        if data.target is not None:
            raise ValueError("Images have no translations. Nothing was read; leave data.target out.")
        if trained is not None and trained.data.source == data.source:
            images = read_image_splits(trained.data, trained.images)[2]
        else:
            whole, test = read_images(data.source)
            images = whole if test is None else test
        x = self.encode(images)
        return EncodedSet(x, image_units(x), str(images))

    def read_splits(self, data: DataConfig, trained: TrainRun | None) -> DataSplits:
        images = read_image_splits(data, ImageConfig() if trained is None else trained.images)
        train, validation, test = (self.codec.encode(split) for split in images)
        binarized = f", binarized by {self.codec.binarize}" if self.codec.binarize else ""
        description = f"{_describe(images)}\n- {self.codec.quantization_levels} levels{binarized}"
        return DataSplits(self.codec.space, train, validation, test, image_units(test), self, description)

    def rows(self, models: Mapping[str, Mapping[str, Estimate] | None]) -> tuple[str, list[dict[str, Any]]]:
        return "bits", [{"model": name, **self.measured(nats)} for name, nats in models.items() if nats is not None]

    def measurement_rows(self, measurement: Measurement) -> tuple[str, list[dict[str, Any]]]:
        return self.rows({"base": measurement.base, "tilted": measurement.tilted})

    def sample_prompts(self, settings: SampleConfig, trained: TrainRun | None) -> PromptSet:
        if settings.prompts:
            self.encode_prompts(settings.prompts)
        if settings.images.complete is None:
            return self.class_prompts(settings.images.classes)
        x = self.read(SourceConfig(settings.images.complete), trained).x
        return self.completion_prompts(x.rows(slice(0, settings.images.count)), settings.images.rows)

    def class_prompts(self, classes: Sequence[int] = ()) -> PromptSet:
        """A prompt for each class, all of them by default; the empty prompt for a model without classes."""
        unknown = [label for label in classes if not 0 <= label < self.codec.classes]
        if unknown:
            raise ValueError(f"The model has {self.codec.classes} classes, from 0, and not {unknown[0]}. Nothing was drawn.")
        if not self.codec.classes:
            return PromptSet([0], empty_prompts(1))
        prompts = [[self.codec.quantization_levels + label] for label in classes or range(self.codec.classes)]
        return PromptSet(range(len(prompts)), prompts_of(prompts))

    def completion_prompts(self, x: Sequences, rows: int | None = None) -> PromptSet:
        """The upper rows of images as prompts, half of the rows by default. Their pixels stay as they are."""
        rows = self.codec.rows // 2 if rows is None else rows
        if not 0 <= rows < self.codec.rows:
            raise ValueError(
                f"Of {self.codec.rows} rows 0 to {self.codec.rows - 1} may be given, not {rows}. Nothing was drawn."
            )
        prompt_tokens = rows * self.codec.columns * self.codec.channels
        prompts = replace(x, start=x.start + prompt_tokens).prompts()
        return PromptSet(range(len(x)), prompts, prompt_tokens, (self.codec.decode(x), self.codec.decode(prompts)))

    def decode(self, points: Sequence[Sequence[int]]) -> list[str] | None:
        return None

    def prompt_label(self, prompt: Sequence[int]) -> str:
        return f"class {prompt[0] - self.codec.quantization_levels}" if self.codec.classes else f"{len(prompt)} values"

    def same_tokens(self, other: object) -> bool:
        return isinstance(other, ImageProcessor) and self.codec == other.codec

    def save_samples(self, file: Path, samples: Sequence[Any], tokens: Sequence[Sequence[int]], prompts: PromptSet) -> None:
        grid = self.grid(sequences(tokens), prompts)
        several = len(prompts.labels) > 1 or prompts.shown
        save_image_grid(file, grid.reshape(-1, *self.codec.image), grid.shape[1] if several else None)

    def grid(self, x: Sequences, prompts: PromptSet) -> NDArray[np.uint8]:
        """Draws as images, a row for each prompt: what is shown before, then the draws after it."""
        drawn = self.codec.decode(x)
        before = [images[:, None] for images in prompts.shown]
        return np.concatenate([*before, drawn.reshape(len(prompts.labels), -1, *self.codec.image)], 1)

    def measured(self, nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
        """The numbers that are usual for images, by name."""
        return {f"bits per {DIMENSION}": as_bits(nats)[DIMENSION], f"nats per {IMAGE}": nats[IMAGE]}


def image_units(x: Sequences) -> dict[str, Tensor]:
    """How many values and images each row is."""
    return {DIMENSION: x.lengths, IMAGE: torch.ones_like(x.lengths)}


def prepare_data(run: TrainRun) -> DataSplits:
    """Read or draw the data of a training run, and make the processor that fits them."""
    data, length, rng = run.data, run.length, SeededRng(run.training.seed).stream("data")
    codec = None if run.start is None else load_codec(run.start)
    if codec is not None or run.reads_images:
        codec = codec_for(read_image_splits(data, run.images)[0], run.images) if codec is None else codec
        return ImageProcessor(codec).read_splits(data, run)
    if data.is_drawn:
        return process_splits(data, rng=rng)
    sets: list[TextSet]
    if data.target is not None:
        if length.chunks:
            raise ValueError("Pairs are whole texts and are not cut into chunks. Nothing was read; leave length.chunks out.")
        pairs = read_pair_splits(data)
        tokenizer = choose_tokenizer(
            run.tokenizer_config, Texts((*pairs.train.sources, *pairs.train.targets), pairs.train.name)
        )
        translation = TranslationProcessor(tokenizer, Space(tokenizer.vocab_size, length.tokens, tokenizer.eos))
        sets = [translation.encode_pairs(split) for split in pairs]
        lines = [
            f"{split}; {len(x):,} used ({int(x.tokens.sum()):,} tokens, {int(x.words.sum()):,} words of targets), "
            f"{x.cut:,} of more than {length.tokens} tokens left out"
            for split, x in zip(pairs, sets, strict=True)
        ]
        return translation._splits(sets, _describe(lines))
    texts = read_splits(data)
    tokenizer = choose_tokenizer(run.tokenizer_config, texts.train)
    space = Space(tokenizer.vocab_size, length.tokens - length.prompt_tokens, None if length.chunks else tokenizer.eos)
    processor = TextProcessor(tokenizer, space, length.prompt_tokens)
    points = partial(text_points, tokenizer=tokenizer, max_length=length.tokens, longer=length.longer)
    sets = [processor.encode(split.texts) if length.chunks else points(split.texts) for split in texts]
    return processor._splits(sets, _describe([f"{split}: {x}" for split, x in zip(texts, sets, strict=True)]))


def process_splits(data: DataConfig, *, rng: Rng) -> DataSplits:
    """Strings of a process of the laboratory."""
    if data.motif is not None:
        return motif_splits(data, data.motif, rng=rng)
    assert data.zero_bits is not None
    return hash_splits(data, data.zero_bits, rng=rng)


def motif_splits(data: DataConfig, motif: str, *, rng: Rng) -> DataSplits:
    """Strings of a motif process, whose entropy is known."""
    mixture = None if data.mixture == 1 else data.mixture
    process = motif_process(motif, data.length, data.alphabet, mixture)
    sets = draw_splits(process.base, data.size, rng=rng)
    share = "" if mixture is None else f", in a share {mixture} of them"
    description = (
        f"Strings of {data.length} symbols over {data.alphabet!r} that contain {process.motif!r}{share}: {len(sets.train):,} "
        f"for training, {len(sets.validation):,} for validation, {len(sets.test):,} for the test."
    )
    truth = (("entropy of the process", Estimate.exact(process.entropy_per_symbol, unit="nats per symbol")),)
    processor = TextProcessor(character_tokenizer(data.alphabet, eos=len(data.alphabet), unknown=False), process.space)
    units = {"token": sets.test.lengths}
    return DataSplits(process.space, sets.train, sets.validation, sets.test, units, processor, description, truth)


def hash_splits(data: DataConfig, zero_bits: int, *, rng: Rng) -> DataSplits:
    """Strings whose hash begins with zero bits; no string is in two splits, so that none is known from training."""
    process = hash_process(zero_bits, data.length, data.alphabet)
    sizes = data.size, max(1, data.size // 4)
    rest = process.count - sum(sizes)
    if rest < 1:
        raise ValueError(
            f"Only {process.count:,} strings of {data.length} symbols have a hash with {zero_bits} zero bits, too few for "
            f"{sizes[0]:,} to train on, {sizes[1]:,} to validate on, and others to test on. Nothing was drawn; lower data.size."
        )
    order = rng.permutation(process.count)
    ends = sizes[0], sum(sizes), sum(sizes) + min(rest, MAX_TEST_STRINGS)
    train, validation, test = (process.points.rows(order[first:last]) for first, last in pairwise((0, *ends)))
    description = (
        f"Strings of {data.length} symbols over {data.alphabet!r} whose BLAKE2b hash begins with {zero_bits} zero bits, all "
        f"different: {len(train):,} for training, {len(validation):,} for validation, {len(test):,} for the test."
    )
    truth = (("entropy of the process", Estimate.exact(process.entropy_per_symbol, unit="nats per symbol")),)
    processor = TextProcessor(character_tokenizer(data.alphabet, eos=len(data.alphabet), unknown=False), process.space)
    return DataSplits(process.space, train, validation, test, {"token": test.lengths}, processor, description, truth)


def _describe(lines: Sequence[object]) -> str:
    return "\n".join(f"- {name}: {line}" for name, line in zip(SPLIT_NAMES, lines, strict=True))


@dataclass(frozen=True)
class StreamSplits:
    """Streams for training, validation and test."""

    space: Space
    train: TextStream
    validation: TextStream
    test: TextStream
    processor: TextProcessor
    description: str

    @property
    def tokenizer(self) -> Tokenizer:
        return self.processor.tokenizer

    def training_stream(self, length: LengthConfig) -> TokenStream:
        """The training stream in segments as the settings say."""
        windows, symbol = None, self.space.vocab_size
        if length.window is not None:
            separator, summary = (symbol + SPECIAL_SYMBOLS.index(name) for name in ("separator", "summary"))
            windows = SegmentPairWindows(length.window, length.tokens, separator, summary)
        return TokenStream(self.train.tokens, length.tokens, length.segments, windows, length.bidirectional)

    def measured(self, nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
        """What is reported of the test data: perplexities, and bits per character and byte."""
        bits = {f"bits per {unit}": value for unit, value in as_bits(nats).items() if unit in ("character", "byte")}
        return {**self.processor.measured(nats), **bits}


def prepare_stream_data(run: TrainRun) -> StreamSplits:
    """Read the data of a run on streams."""
    if run.data.is_drawn:
        raise ValueError(
            "A process of the laboratory gives strings, not one long text. Nothing was read; leave length.stream out."
        )
    if run.data.split == "raw":
        raw = read_raw_splits(run.data)
        sample = Texts(() if run.tokenizer_config.kind == "byte" else (decode_part(raw.train),), run.data.source)
        tokenizer = choose_tokenizer(run.tokenizer_config, sample)
        streams = [raw_stream(part, tokenizer) for part in raw]
    else:
        splits = read_splits(run.data)
        tokenizer = choose_tokenizer(run.tokenizer_config, splits.train)
        streams = [text_stream(part.texts, tokenizer, ends=run.length.ends) for part in splits]
    space = Space(tokenizer.vocab_size, run.length.tokens)
    description = _describe([f"{run.data.source}: {stream}" for stream in streams])
    train, validation, test = streams
    return StreamSplits(space, train, validation, test, TextProcessor(tokenizer, space), description)


def with_image_shape(config: Any, codec: ImageCodec) -> Any:
    """The config of a network with the size of the images and their classes, which are not chosen but taken from the data."""
    if config.modality != "image":
        if codec.classes:
            raise ValueError(f"A {type(config).__name__} knows no classes. Nothing was trained; choose a network of images.")
        return config
    for name, value in (("image", codec.image), ("classes", codec.classes)):
        if getattr(config, name) not in (value, getattr(type(config)(), name)):
            raise ValueError(
                f"The data have {name} = {value}, not {getattr(config, name)}. Nothing was trained; leave base.{name} out."
            )
    return replace(config, image=codec.image, classes=codec.classes)
