"""Exposure bias of a model, and against another one: the whole of `esscher analyse exposure`.

A model of texts or of chunks goes on from its prompts. A model that learnt from a stream goes on from places within one long
text, with the memory of what it read before each of them; each place is then a replicate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.bases.carried import Carried
from esscher.bases.logits import scores_and_levels
from esscher.bases.network import NetworkBase
from esscher.cut import Cut
from esscher.data.sources import read_texts
from esscher.estimators.context_length import spread_places
from esscher.estimators.exposure import Exposure, Levels, exposure, exposure_of
from esscher.estimators.exposure_ratio import ExposureRatio, OwnScores, exposure_ratio, own_scores, ratio_of
from esscher.randomness import Rng, Seeded
from esscher.samplers.ancestral import Ancestral, draw, rows_at_once
from esscher.settings.exposure import ExposureSettings
from esscher.settings.train import TrainRun
from esscher.space import Sequences, by_position, distinct_prompts, empty_prompts
from esscher.target import Tilted
from esscher.training.draws_in_pieces import collect
from esscher.verbs.models import Model, load_model
from esscher.verbs.run_folder import trained_on_streams
from esscher.verbs.subsets import some_of
from esscher.verbs.tilt import read_sets
from esscher.verbs.training_streams import prepare_streams, read_stream_of

HELD_OUT = "held out of what the model learnt from"


@dataclass(frozen=True)
class TextSource:
    """A text, and how it is read; without `data` what was held out as the model learnt."""

    data: str | None = None
    column: str = "text"
    unit: Literal["line", "paragraph", "document"] | None = None
    separator: str | None = None


@dataclass(frozen=True)
class ExposureFound:
    """The bound of the model, that of the baseline and the ratio of the two, if there is one; and what it was found on."""

    model: Exposure
    baseline: Exposure | None
    ratio: ExposureRatio | None
    measured_on: str


def find_exposure(
    folder: str | Path,
    source: TextSource,
    settings: ExposureSettings,
    *,
    against: str | Path | None = None,
    cut: Cut | None = None,
    level: float = 0.95,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> ExposureFound:
    """Exposure of the model in a folder, on text that it did not learn from."""
    rng, cut = Seeded(seed), Cut() if cut is None else cut
    learnt = trained_on_streams(folder) if cut == Cut() else None
    model = load_model(folder, cut=cut)
    if learnt is not None:
        return _of_stream(model, learnt, source, settings, against, level, rng, say)
    every, told = _points(model, source)
    x = some_of(every, settings.sequences, rng=rng.stream("sequences"))
    x = Sequences(x.tokens, x.start, torch.minimum(x.stop, x.start + settings.longest))
    found = _of_points(model, x, settings, level, rng.stream("model"), say)
    measured_on = f"{told}: {len(x):,} sequences, up to {settings.longest} tokens of each"
    if against is None:
        return ExposureFound(found, None, None, measured_on)
    other = load_model(against, cut=Cut(model.base.space.max_length, cut.eos, model.cut.given))
    _check_alike(model, other)
    bound = _of_points(other, x, settings, level, rng.stream("baseline"), say)
    greedy = settings.decode == "greedy"
    ratio = exposure_ratio(model.base, other.base, x, greedy=greedy, level=level, rng=rng.stream("outputs"))
    return ExposureFound(found, bound, ratio, measured_on)


def _points(model: Model, source: TextSource) -> tuple[Sequences, str]:
    """The data as points of the model, and what to call them."""
    if source.data is None:
        return read_sets(model, None).test, HELD_OUT
    texts = read_texts(source.data, column=source.column, unit=source.unit or "line", separator=source.separator)
    return model.read(texts.texts).x, str(texts)


def _of_points(
    model: Model, x: Sequences, settings: ExposureSettings, level: float, rng: Rng, say: Callable[[str], None]
) -> Exposure:
    prompts, _ = distinct_prompts(x)
    each = settings.draws * len(x) if len(prompts) == 1 else settings.draws
    sampler = Ancestral(longest=settings.longest)
    draws = collect(sampler, Tilted(model.base), prompts, each, rng=rng, say=say)
    return exposure(model.base, x, draws, level=level)


def _check_alike(model: Model, other: Model) -> None:
    """Two models can be compared token by token."""
    images = model.codec is not None or other.codec is not None
    if model.codec != other.codec or not (images or model.tokenizer.backend.get_vocab() == other.tokenizer.backend.get_vocab()):
        raise ValueError(
            f"{model.folder} and {other.folder} have different tokens, so their positions are not the same. Nothing was "
            f"measured; compare models with one tokenizer."
        )
    if model.base.space != other.base.space:
        raise ValueError(
            f"{model.folder} speaks of {model.base.space}, {other.folder} of {other.base.space}. Nothing was measured; compare "
            f"models of the same points."
        )


def _of_stream(
    model: Model,
    learnt: TrainRun,
    source: TextSource,
    settings: ExposureSettings,
    against: str | Path | None,
    level: float,
    rng: Rng,
    say: Callable[[str], None],
) -> ExposureFound:
    if source.data is None:
        tokens, told = prepare_streams(learnt).test.tokens, HELD_OUT
    else:
        own = replace(learnt.data, column=source.column, unit=source.unit or learnt.data.unit, separator=source.separator)
        tokens, told = read_stream_of(source.data, model.tokenizer, own, learnt.length).tokens, source.data
    length = min(settings.longest, model.base.space.max_length)
    windows, warm = contexts_of(tokens, length, settings)
    other = None if against is None else load_model(against, cut=Cut(max_length=model.base.space.max_length))
    if other is not None:
        _check_alike(model, other)
    sides = [
        read_places(one.streaming, windows, warm, settings, rng=rng.stream(name), say=say)
        for name, one in (("model", model), ("baseline", other))
        if one is not None
    ]
    sources = ((1, len(windows)),)
    found = [exposure_of(side.data, side.drawn, sources=sources, level=level) for side in sides]
    measured_on = f"{told}: {len(windows):,} places of {length} tokens, each after {warm:,} that the memory read"
    if other is None:
        return ExposureFound(found[0], None, None, measured_on)
    ratio = ratio_of(
        sides[0].own, sides[1].own, torch.arange(len(windows)), greedy=settings.decode == "greedy", level=level
    )  # fmt: skip
    return ExposureFound(found[0], found[1], ratio, measured_on)


def contexts_of(tokens: Int[Tensor, "N"], length: int, settings: ExposureSettings) -> tuple[Int[Tensor, "R W"], int]:
    """Segments of so many tokens, evenly spread and apart from each other, each behind the tokens before it; and how many."""
    warm = min(settings.warm, (len(tokens) - length) // 2)
    count = min(settings.sequences, max(0, len(tokens) - warm) // length)
    if count < 2:
        raise ValueError(
            f"A text of {len(tokens):,} tokens has fewer than two places of {length}. Nothing was measured; give more text."
        )
    places = spread_places(count, len(tokens) - length + 1, warm)
    return tokens[places[:, None] + torch.arange(-warm, length)], warm


@dataclass(frozen=True)
class Places:
    """What a base with a memory says at the places of a stream: of the data, of its draws, and after its own outputs."""

    data: Levels
    drawn: Levels
    own: OwnScores


@torch.no_grad()
def read_places(
    base: NetworkBase,
    windows: Int[Tensor, "R W"],
    warm: int,
    settings: ExposureSettings,
    *,
    rng: Rng,
    say: Callable[[str], None] = lambda text: None,
) -> Places:
    """All places, some at a time: the memory of what stands before, the segment, and what the base would have said there."""
    length, draws, greedy = windows.shape[1] - warm, settings.draws, settings.decode == "greedy"
    data, drawn, own = [], [], []
    for number, (carried, segment) in enumerate(_carried(base, windows, warm, max(1, rows_at_once(base.space) // draws))):
        chance = rng.stream(number)
        y, _ = draw(carried, empty_prompts(len(segment)).to(segment.tokens.device), draws, rng=chance, longest=length)
        data.append(by_position(segment, scores_and_levels(carried, segment)[1].double(), length).cpu())
        drawn.append(by_position(y, scores_and_levels(carried, y)[1].double(), length).cpu())
        own.append(own_scores(carried, segment, greedy=greedy, rng=chance.stream("outputs")))
        say(f"{sum(map(len, data)):,} of {len(windows):,} places")
    rows = torch.arange(len(windows))
    scores = OwnScores(torch.cat([one.log_prob for one in own]), torch.cat([one.there for one in own]))
    return Places(_levels(torch.cat(data), rows), _levels(torch.cat(drawn), rows.repeat_interleave(draws)), scores)


def _levels(level: Tensor, replicate: Int[Tensor, "M"]) -> Levels:
    """Rows that all have one length and count alike: nothing ends in a stream."""
    return Levels(level, torch.ones_like(level, dtype=torch.bool), torch.ones(len(level)).double(), replicate)


def _carried(base: NetworkBase, windows: Int[Tensor, "R W"], warm: int, together: int) -> Iterator[tuple[Carried, Sequences]]:
    """The base after the first `warm` tokens of some windows, and the rest of these as points."""
    device = next(base.parameters()).device
    for some in torch.split(windows.to(device), together):
        memory = base.open(len(some))
        for first in range(0, warm, base.space.max_length):
            _, memory = base.read(memory, some[:, first : min(first + base.space.max_length, warm)])
        rest = some[:, warm:]
        stop = torch.full((len(some),), rest.shape[1], device=device)
        yield Carried(base, memory), Sequences(rest, torch.zeros_like(stop), stop)
