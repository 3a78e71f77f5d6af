"""The whole of `esscher sample`: draws after prompts, and what they were chosen from.

    sample_texts(load_model("runs/first"), ["Return the"], DrawingConfig(), seed=0)

Processes that were started together share the draws of each prompt. Draws of a model of images are pictures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.bases.truncated import truncated
from esscher.bases.turns import in_turns
from esscher.draws import Draws, Sampler
from esscher.launch import rank, started
from esscher.randomness import Rng, Seeded
from esscher.samplers.choice import SamplerSettings, choose_sampler
from esscher.samplers.pool import AdaptivePool, Pool, survivors
from esscher.samplers.watched import Tally, watched
from esscher.settings.sample import DrawingConfig, PicturingConfig
from esscher.space import prompts_of
from esscher.target import Tilted, flat
from esscher.training.processes import from_all, join
from esscher.training.progress import choose_progress
from esscher.verbs.candidates import candidate_rows, pool_rows, sample_rows
from esscher.verbs.models import Model
from esscher.verbs.paint import drawn_images, paint, prompts_of_classes


@dataclass(frozen=True)
class Sampled:
    """The draws as rows, and for samplers that choose from pools what they chose from, prompt by prompt."""

    samples: list[dict[str, Any]]
    facts: dict[str, Any]
    notes: list[str]
    pools: list[dict[str, Any]] = field(default_factory=list)
    candidates: list[list[dict[str, Any]]] = field(default_factory=list)


def sampler_of(drawing: DrawingConfig, *, tilted: bool) -> Sampler:
    """The sampler that the settings ask for."""
    settings = SamplerSettings(
        pool=64 if drawing.pool is None else drawing.pool,
        steps=drawing.steps,
        log_bound=drawing.log_bound,
        effective=drawing.effective,
        largest=drawing.largest,
        shared=not drawing.own_pools,
        block=drawing.block,
        halvings=drawing.halvings,
    )
    return choose_sampler(drawing.name(tilted=tilted), settings)


def sample_texts(model: Model, texts: Sequence[str], drawing: DrawingConfig, *, seed: int = 0, quiet: bool = False) -> Sampled:
    """Draws after each of the texts; "" is a prompt of nothing."""
    if started() == 1:
        return _draw(model, texts, drawing, drawing.draws, Seeded(seed), quiet=quiet)
    join()
    own = len(range(rank(), drawing.draws, started()))
    with in_turns():
        rng = Seeded(seed).stream("rank", rank())
        found = _draw(model, texts, drawing, own, rng, quiet=quiet) if own else Sampled([], {}, [])
    return _together([Sampled(**one) for one in from_all(vars(found)) if one["samples"]], len(texts))


def sample_images(
    model: Model, drawing: DrawingConfig, picturing: PicturingConfig, *, seed: int = 0
) -> tuple[NDArray[np.uint8], int | None, Draws]:
    """Draws as pictures, how many of them stand side by side, and the draws: those of one prompt make a row; where images are
    given, after the image itself and what was given of it."""
    target, sampler = _truncated(model, drawing), _sampler(model, drawing)
    if picturing.complete is not None:
        given = picturing.complete, picturing.rows, picturing.images
        shown, found = paint(model, target, sampler, *given, drawing.draws, rng=Seeded(seed))
        return shown, drawing.draws + 2, found
    prompts = prompts_of_classes(model, picturing.classes)
    shown, found = drawn_images(model, target, sampler, prompts, drawing.draws, rng=Seeded(seed))
    return shown, drawing.draws if len(prompts) > 1 else None, found


def _sampler(model: Model, drawing: DrawingConfig) -> Sampler:
    return sampler_of(drawing, tilted=model.target.energy is not flat)


def _truncated(model: Model, drawing: DrawingConfig) -> Tilted:
    """The target with its base truncated, where that is asked for."""
    base = truncated(model.target.base, top_k=drawing.top_k, top_p=drawing.top_p, temperature=drawing.temperature)
    return Tilted(base, model.target.energy)


def _draw(model: Model, texts: Sequence[str], drawing: DrawingConfig, draws: int, rng: Rng, *, quiet: bool) -> Sampled:
    sampler, tokenizer = _sampler(model, drawing), model.tokenizer
    target = watched(_truncated(model, drawing), Tally(choose_progress(quiet).say))
    encoded = model.prompts(texts)
    prompts, notes = prompts_of(encoded), _notes_on_prompts(model, [len(tokens) for tokens in encoded])
    chosen = sampler.choose(target, prompts, draws, rng=rng) if isinstance(sampler, Pool | AdaptivePool) else []
    drawn = survivors(chosen) if chosen else sampler(target, prompts, draws, rng=rng)
    samples = sample_rows(texts, drawn, target, tokenizer)
    facts = {"drawn_from_the_base": drawn.cost, "independent_draws": drawn.independent}
    if not chosen:
        return Sampled(samples, facts, notes)
    pools = pool_rows(texts, chosen)
    return Sampled(samples, facts, notes + _notes_on_pools(pools), pools, candidate_rows(chosen, target, tokenizer))


def _together(every: Sequence[Sampled], prompts: int) -> Sampled:
    """What several processes drew, prompt by prompt."""
    each = [len(one.samples) // prompts for one in every]
    return Sampled(
        [row for place in range(prompts) for one, count in zip(every, each, strict=True)
         for row in one.samples[place * count : (place + 1) * count]],
        {"drawn_from_the_base": sum(one.facts["drawn_from_the_base"] for one in every),
         "independent_draws": all(one.facts["independent_draws"] for one in every), "processes": started()},
        list(dict.fromkeys(note for one in every for note in one.notes)),
        [one.pools[place] for place in range(prompts) for one in every if one.pools],
        [[row for one in every for row in one.candidates[place]] for place in range(prompts) if every[0].candidates],
    )  # fmt: skip


def _notes_on_pools(pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where even the largest pool was too small."""
    few = [row for row in pools if not row["enough"]]
    if not few:
        return []
    return [
        f"After {len(few)} of {len(pools)} prompts, such as {few[0]['prompt']!r}, even {few[0]['candidates']:,} candidates "
        f"were too few for the weight to be spread as --effective asks: the draws lean towards the base. Raise --largest, "
        f"lower --effective, or tilt less."
    ]


def _notes_on_prompts(model: Model, lengths: Sequence[int]) -> list[str]:
    """A model of chunks has learnt what follows prompts of one length."""
    other = [length for length in lengths if length != model.given]
    if not model.given or not other:
        return []
    return [f"The model was made for prompts of {model.given} tokens; {len(other)} of these have others, such as {other[0]}."]
