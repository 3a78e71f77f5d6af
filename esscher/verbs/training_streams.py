"""What a run on streams learns from: the texts of its settings as three streams of tokens, with their space and tokenizer."""

from dataclasses import dataclass

from esscher.data.sources import NAMES, Splits, Texts, read_raw
from esscher.data.streams import TextStream, decode_part, raw_stream, text_stream
from esscher.data.tokenizers import Tokenizer
from esscher.data.windows import Windows
from esscher.networks.xlnet import SYMBOLS
from esscher.settings.data import DataConfig, LengthConfig
from esscher.settings.train import TrainRun
from esscher.space import Space
from esscher.training.streams import Stream
from esscher.verbs.training_data import choose_tokenizer, read_raw_splits, read_splits, read_whole


@dataclass(frozen=True)
class StreamMaterial:
    """Streams to learn from, to choose by and to judge by."""

    space: Space
    train: TextStream
    validation: TextStream
    test: TextStream
    tokenizer: Tokenizer
    description: str
    codec: None = None  # as images have

    @property
    def text(self) -> Tokenizer:
        """What text became tokens by, as `Material` has it, where there may be none."""
        return self.tokenizer

    def learnt(self, length: LengthConfig) -> Stream:
        """What is learnt from, in segments as told."""
        windows, symbol = None, self.space.vocab_size
        if length.window is not None:
            separator, summary = (symbol + SYMBOLS.index(name) for name in ("separator", "summary"))
            windows = Windows(length.window, length.tokens, separator, summary)
        return Stream(self.train.tokens, length.tokens, length.segments, windows, length.both_ways)

    def chosen_by(self, length: LengthConfig) -> Stream:
        """What is chosen by, in segments of one length."""
        return Stream(self.validation.tokens, length.tokens)


def prepare_streams(run: TrainRun) -> StreamMaterial:
    """Read the data of a run on streams."""
    if run.data.motif is not None:
        raise ValueError("A process of the laboratory gives strings, not one long text. Nothing was read; leave stream out.")
    splits = None if run.data.split == "raw" else read_splits(run.data)
    tokenizer, parts = _raw(run) if splits is None else _texts(splits, run)
    description = "\n".join(f"- {name}: {run.data.source}: {part}" for name, part in zip(NAMES, parts, strict=True))
    train, validation, test = parts
    return StreamMaterial(Space(tokenizer.vocab_size, run.length.tokens), train, validation, test, tokenizer, description)


def read_stream_of(source: str, tokenizer: Tokenizer, data: DataConfig, length: LengthConfig) -> TextStream:
    """A source as one stream, in the manner of these settings."""
    if data.split == "raw":
        return raw_stream(read_raw(source), tokenizer)
    return text_stream(read_whole(data, source).texts, tokenizer, ends=length.ends)


def _raw(run: TrainRun) -> tuple[Tokenizer, list[TextStream]]:
    parts = read_raw_splits(run.data)
    learnt_from = Texts(() if run.vocabulary.kind == "byte" else (decode_part(parts[0]),), run.data.source)
    tokenizer = choose_tokenizer(run.vocabulary, learnt_from)
    return tokenizer, [raw_stream(part, tokenizer) for part in parts]


def _texts(splits: Splits, run: TrainRun) -> tuple[Tokenizer, list[TextStream]]:
    tokenizer = choose_tokenizer(run.vocabulary, splits.train)
    return tokenizer, [text_stream(part.texts, tokenizer, ends=run.length.ends) for part in splits]
