"""Reading a source in three splits: texts, raw bytes, translation pairs, images, draws of a process; and its tokenizer."""

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.core.randomness import Rng
from esscher.core.space import Sequences, empty_prompts, unique_prompts
from esscher.core.target import Base
from esscher.data.config import DataConfig, ImageConfig, SourceConfig, TokenizerConfig
from esscher.data.docstrings import docstring_splits
from esscher.data.images import ImageArray, ImageCodec, read_images, split_images
from esscher.data.sources import Splits, Texts, read_raw, read_texts, split_by_hash, split_by_position, split_raw
from esscher.data.text import TextStream, decode_part, raw_stream, text_stream
from esscher.data.tokenizers import TOKENIZER_KINDS, Tokenizer, load_tokenizer, train_tokenizer
from esscher.data.translation_pairs import Pairs, read_pairs, split_pairs
from esscher.samplers.ancestral import draw


def read_source(data: SourceConfig, source: str | None = None) -> Texts:
    """All texts of a source, by default that of the settings."""
    return read_texts(
        data.source if source is None else source, column=data.column or "text", unit=data.unit or "line",
        separator=data.separator, keep_empty=data.empty == "keep",
    )  # fmt: skip


def read_splits(data: DataConfig) -> Splits[Texts]:
    """The texts of a source in three splits."""
    if data.source == "docstrings":
        return docstring_splits()
    if data.split == "raw":
        return Splits(*(Texts((decode_part(part),), data.source) for part in read_raw_splits(data)))
    whole = read_source(data)
    if data.validation is None or data.test is None:
        return (split_by_hash if data.split == "hash" else split_by_position)(whole, held_out=data.held_out)
    return Splits(whole, read_source(data, data.validation), read_source(data, data.test))


def read_raw_splits(data: DataConfig) -> Splits[bytes]:
    """The bytes of a source in three splits."""
    whole = read_raw(data.source)
    if data.validation is None or data.test is None:
        return split_raw(whole, held_out=data.held_out)
    return Splits(whole, read_raw(data.validation), read_raw(data.test))


def read_pair_source(data: SourceConfig, source: str | None = None) -> Pairs:
    """All translation pairs of a source, by default that of the settings."""
    if data.target is None:
        raise ValueError(f"{data.source} is to be read as pairs. Nothing was read; name the translations, too (target).")
    return read_pairs(data.source if source is None else source, data.target, column=data.column or "text")


def read_pair_splits(data: DataConfig) -> Splits[Pairs]:
    """The translation pairs of a source in three splits."""
    whole = read_pair_source(data)
    if data.validation is None or data.test is None:
        return split_pairs(whole, held_out=data.held_out)
    return Splits(whole, read_pair_source(data, data.validation), read_pair_source(data, data.test))


def draw_splits(process: Base, size: int, *, test: int = 5000, rng: Rng) -> Splits[Sequences]:
    """`size` training sequences of a process, a quarter as many for validation (500 to 2000), and `test` sequences, which do
    not depend on `size`. The sizes are those of Parshakova et al. (2019)."""
    if size < 1 or test < 1:
        raise ValueError(f"A set has at least one point, not {size} for training and {test} for test.")
    sizes = {"train": size, "validation": min(max(size // 4, 500), 2000), "test": test}
    return Splits(*(draw(process, empty_prompts(1), count, rng=rng.stream(name))[0] for name, count in sizes.items()))


def read_image_splits(data: DataConfig, images: ImageConfig) -> list[ImageArray]:
    """Images for training, validation and test; the test images of the source, where it has some."""
    whole, test = read_images(data.source)
    if data.validation is not None and data.test is not None:
        sets = [whole, *(read_images(source)[0] for source in (data.validation, data.test))]
    else:
        sets = split_images(whole, held_out=data.held_out, test=test is None) + ([] if test is None else [test])
    sets[0] = sets[0].rows(slice(images.skip, None if images.most is None else images.skip + images.most))
    if len(sets[0]) == 0:
        raise ValueError(f"{data.source} has no training images after the first {images.skip:,}. Nothing was read; skip fewer.")
    return [split.shrunk(images.shrink) if images.shrink > 1 else split for split in sets]


def codec_for(images: ImageArray, config: ImageConfig) -> ImageCodec:
    """The codec for these images."""
    if config.classes and images.labels is None:
        raise ValueError(f"{images.source} states no classes. Nothing was trained; leave images.classes out.")
    classes = 1 + int(images.labels.max()) if config.classes and images.labels is not None else 0
    rows, columns, channels = images.values.shape[1:]
    return ImageCodec(rows, columns, channels, 2 if config.binarize else config.quantization_levels, classes, config.binarize)


def read_stream(data: SourceConfig, tokenizer: Tokenizer, *, raw: bool, ends: bool) -> TextStream:
    """A source as one stream of tokens: its bytes as they are, or its texts one after the other."""
    if raw:
        return raw_stream(read_raw(data.source), tokenizer)
    return text_stream(read_source(data).texts, tokenizer, ends=ends)


def choose_tokenizer(config: TokenizerConfig, texts: Texts) -> Tokenizer:
    """A tokenizer trained on the texts, or loaded from a folder."""
    if config.kind in TOKENIZER_KINDS:
        return train_tokenizer(config.kind, texts.texts, vocab_size=config.vocab_size, min_frequency=config.min_frequency)
    if "/" not in config.kind and "\\" not in config.kind:
        known = ", ".join(TOKENIZER_KINDS)
        raise ValueError(f"Unknown tokenizer {config.kind!r}; the known ones are {known}, or a folder such as ./{config.kind}.")
    return load_tokenizer(config.kind)


def evenly_spaced(size: int, count: int) -> Int[Tensor, "K"]:
    """So many of the numbers below `size`, evenly spread; all of them, if there are no more."""
    return torch.arange(min(size, count)) * size // min(size, count)


def evenly_spaced_rows(x: Sequences, count: int | None) -> Sequences:
    """So many of the rows, evenly spread; all of them, if there are no more."""
    return x if count is None else x.rows(evenly_spaced(len(x), count))


def random_rows(x: Sequences, count: int, *, rng: Rng) -> Sequences:
    """`count` rows by chance, in their order; all, if there are fewer."""
    if count < 1:
        raise ValueError(f"At least one sequence is needed, not {count}. Nothing was done.")
    if count >= len(x):
        return x
    return x.rows(rng.permutation(len(x))[:count].sort().values.to(x.tokens.device))


def split_by_prompt(x: Sequences, shares: tuple[float, float], *, rng: Rng) -> tuple[Sequences, Sequences, Sequences]:
    """Rows for training, validation (first share) and test (second); no prompt is in two of them, unless there is only one."""
    prompts, context = unique_prompts(x)
    unit = torch.arange(len(x)) if len(prompts) == 1 else context.cpu()
    count = int(unit.max()) + 1 if len(x) else 0
    sizes = [round(share * count) for share in shares]
    if min(*sizes, count - sum(sizes)) < 2:
        raise ValueError(
            f"{count} different prompts (or sequences, after one prompt) cannot be shared out among learning, choosing and "
            f"judging, at least 2 for each. Nothing was done; give more data."
        )
    place = torch.empty(count, dtype=torch.long)
    place[rng.permutation(count)] = torch.arange(count)
    ends = sizes[0], sizes[0] + sizes[1]
    part = (place[unit] >= ends[0]).long() + (place[unit] >= ends[1]).long()
    choose, judge, learn = (x.rows((part == number).nonzero()[:, 0].to(x.tokens.device)) for number in range(3))
    return learn, choose, judge
