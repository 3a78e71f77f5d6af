"""A base that translates at work: texts in, translations out, in order and a few at a time.

Lines are taken in windows, and those of a window decoded together with others of about their length. An empty line stays empty;
a source with more tokens than the base learnt from is cut to as many. Both are told beside the line.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor

from esscher.bases.config import TRANSLATE, name
from esscher.bases.network import NetworkBase
from esscher.data.parallel import prompts_of_sources, targets_of
from esscher.decoding.beam import Beam, greedy
from esscher.decoding.chosen import Best, Drawn, MinimumRisk
from esscher.decoding.decoder import Decoder
from esscher.draws import Sampler
from esscher.randomness import Rng
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.pool import Pool
from esscher.settings.translate import DecodingConfig
from esscher.space import Sequences, prompts_of
from esscher.target import flat
from esscher.verbs.models import Model, load_model

TOGETHER, WINDOW = 64, 512  # lines that are decoded at once, and that are sorted by length


@dataclass(frozen=True)
class Translated:
    """The translation of a line, counted from 1, what was noted of it, and how likely the base finds it."""

    line: int
    source: str
    text: str
    note: str = ""
    log_base: float | None = None


def load_translator(folder: str | Path, energy: str | Path | None = None) -> Model:
    """The model of these folders, whose prompts must be sources."""
    model = load_model(folder, energy)
    if not model.reads_sources:
        kind = name(model.base.config) if isinstance(model.base, NetworkBase) else type(model.base).__name__
        raise ValueError(
            f"{folder} holds a base of kind {kind}, which goes on from a text and translates none. Nothing was translated; "
            f"train a base on pairs (best one of {', '.join(TRANSLATE)}), or bring an encoder-decoder model."
        )
    return model


def build_decoder(config: DecodingConfig, model: Model) -> Decoder:
    """The decoder that the settings name."""
    tilted = model.target.energy is not flat
    if config.decode == "beam":
        return Beam(config.beam, config.length_penalty)
    if config.decode == "greedy":
        return greedy()
    if config.decode == "sample":
        sampler: Sampler = Pool(config.pool) if tilted else Ancestral()
        return Drawn(sampler)
    if config.decode == "best":
        return Best(config.draws, config.length_penalty)
    return MinimumRisk(_gain(config.utility, model), config.draws, Importance())


def translate(
    model: Model,
    texts: Iterable[str],
    decoder: Decoder,
    *,
    rng: Rng,
    first: int = 0,
    say: Callable[[int], None] = lambda lines: None,
) -> Iterator[Translated]:
    """The translation of every line, in order; `first` lines were translated before, a whole number of windows."""
    rest = iter(texts)
    while window := list(islice(rest, WINDOW)):
        yield from _window(model, window, decoder, first, rng.stream("lines", first), say)
        first += len(window)


def _window(
    model: Model, texts: Sequence[str], decoder: Decoder, first: int, rng: Rng, say: Callable[[int], None]
) -> list[Translated]:
    base, tokenizer = model.base, model.tokenizer
    most = base.space.max_length
    sources = prompts_of_sources([text.strip() for text in texts], tokenizer)
    notes = ["" if text.strip() else "empty" for text in texts]
    for number, source in enumerate(sources):
        if len(source) > most:
            notes[number] = f"{len(source)} tokens, cut to {most}"
            sources[number] = [*source[: most - 1], tokenizer.eos]
    order = sorted((number for number, note in enumerate(notes) if note != "empty"), key=lambda one: len(sources[one]))
    found: dict[int, tuple[str, float]] = {}
    device = next(base.parameters()).device
    for begin in range(0, len(order), TOGETHER):
        some = order[begin : begin + TOGETHER]
        decoded = decoder(model.target, prompts_of([sources[one] for one in some]).to(device), rng=rng.stream(begin))
        said = zip(targets_of(decoded.x, tokenizer), decoded.log_base.tolist(), strict=True)
        found.update(zip(some, said, strict=True))
        say(first + len(found))
    return [
        Translated(first + number + 1, text, found[number][0], notes[number], found[number][1])
        if number in found
        else Translated(first + number + 1, text, "", notes[number])
        for number, text in enumerate(texts)
    ]


def _gain(utility: str, model: Model) -> Callable[[Sequences], Tensor]:
    from esscher.metrics.utility import pairwise

    return lambda x: pairwise(utility, targets_of(x, model.tokenizer))
