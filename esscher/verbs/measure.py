"""Measuring a model of text: the whole of `esscher measure`.

A test set with one prompt for all (none, for texts) needs many draws once; one with a prompt for each sequence needs some
after each, so it is thinned to `LARGEST` sequences, evenly spaced, unless told otherwise. Draws can be kept in a folder,
piece by piece, and a measuring that was stopped goes on from there.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from esscher.data.text import TextSet
from esscher.energies.origin import base_digest
from esscher.energies.saved import SavedNetwork
from esscher.estimators.measured import Measured, measure
from esscher.estimators.perplexity import Test, as_perplexity
from esscher.estimators.steps import Step, per_step
from esscher.randomness import Seeded
from esscher.samplers.importance import Importance
from esscher.settings.changes import refuse_change
from esscher.space import Sequences, distinct_prompts
from esscher.storage import digest, module_tensors, write_json
from esscher.target import flat
from esscher.training.draws_in_pieces import InPieces
from esscher.verbs.models import Model
from esscher.verbs.subsets import spread

ONE_PROMPT, EACH_PROMPT = 4000, 64  # draws
LARGEST = 500  # test sequences with prompts of their own
WORST, LAST_WORDS = 8, 6
SETTINGS = "measuring.json"


@dataclass(frozen=True)
class Measuring:
    """What to measure; None leaves a number to the test set, and 0 sequences for `steps` mean no perplexity by position."""

    draws: int | None = None
    sequences: int | None = None
    steps: int = 0
    step_draws: int = EACH_PROMPT
    enumerate_last: bool = True
    test: Test = "sample"
    level: float = 0.95
    seed: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("draws", self.draws, 2),
            ("sequences", self.sequences, 2),
            ("steps", self.steps, 0),
            ("step_draws", self.step_draws, 2),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} is at least {least}, not {value}. Nothing was measured.")


@dataclass(frozen=True)
class MeasuredText:
    """What was found, on which of the `of` sequences, and the prompts whose weights deserve least belief."""

    made: TextSet
    of: int
    draws: int
    found: Measured
    steps: tuple[Step, ...]
    worst: tuple[dict[str, Any], ...]

    @property
    def measured_on(self) -> str:
        """The test sequences in words."""
        return str(self.made) if len(self.made) == self.of else f"{self.made}, evenly spaced among {self.of:,}"

    def step_rows(self) -> list[dict[str, Any]]:
        """The perplexity at each position, as a table."""
        return [
            {
                "position": step.position,
                "sequences": step.sequences,
                **{
                    name: replace(one, unit="")
                    for name, one in as_perplexity({"base": step.base, "tilted": step.tilted}).items()
                },
                "nats_saved": replace(step.saved, unit=""),
                "tilted_at_least": as_perplexity({"": step.bounds.lower})[""].value,
                "tilted_at_most": as_perplexity({"": step.bounds.upper})[""].value,
            }
            for step in self.steps
        ]


def measure_text(
    model: Model, whole: TextSet, settings: Measuring, *, say: Callable[[str], None] = lambda text: None
) -> MeasuredText:
    """Perplexities of a model on text that it cut by every method, log Z, and what to believe of them."""
    most, draws = amounts(model, whole.x, settings)
    made = thinned(whole, most, eos=model.target.space.eos)
    found = measure_points(model, made.x, draws, made.units(), settings, say=say)
    tilted = model.target.energy is not flat
    steps = _steps(model, made, settings, Seeded(settings.seed, "steps"), say) if settings.steps and tilted else ()
    return MeasuredText(made, len(whole), draws, found, steps, tuple(_worst(model, found)))


def amounts(model: Model, x: Sequences, settings: Measuring) -> tuple[int, int]:
    """How many of these sequences are measured, and by how many draws after each prompt."""
    one_prompt = len(distinct_prompts(x)[0]) == 1
    most = settings.sequences or (len(x) if one_prompt or model.target.energy is flat else LARGEST)
    return most, settings.draws or (ONE_PROMPT if one_prompt else EACH_PROMPT)


def measure_points(
    model: Model, x: Sequences, draws: int, units: Mapping[str, Tensor], settings: Measuring, *, say: Callable[[str], None]
) -> Measured:
    """What every method finds of points of text or of images; draws are kept in the folder of the settings."""
    if settings.folder is not None and model.target.energy is not flat:
        claim(settings.folder, model, settings, draws)
    sampler = InPieces(Importance(), settings.folder, say=say)
    return measure(
        model.target, x, sampler, draws, units=units, bounds=bounds_of(model), test=settings.test, level=settings.level,
        rng=Seeded(settings.seed),
    )  # fmt: skip


def thinned(made: TextSet, most: int, *, eos: int | None) -> TextSet:
    """At most so many of the sequences, evenly spaced."""
    if most >= len(made):
        return made
    rows = spread(len(made), most)
    x = made.x.rows(rows)
    last = x.tokens.gather(1, (x.stop - 1)[:, None])[:, 0]
    cut = 0 if eos is None else int((last != eos).sum())
    return TextSet(x, made.words[rows], made.bytes[rows], cut)


def _steps(model: Model, made: TextSet, settings: Measuring, rng: Seeded, say: Callable[[str], None]) -> tuple[Step, ...]:
    x = thinned(made, settings.steps, eos=model.target.space.eos).x
    sampler = InPieces(Importance(), None if settings.folder is None else settings.folder / "steps")
    found = per_step(
        model.target, x, sampler, settings.step_draws, enumerate_last=settings.enumerate_last, test=settings.test,
        level=settings.level, rng=rng, say=say,
    )  # fmt: skip
    return tuple(found)


def bounds_of(model: Model) -> tuple[float, float] | None:
    """Where every -E(x) lies, if the energy's settings say."""
    if not isinstance(model.energy, SavedNetwork) or model.energy.config.bound is None:
        return None
    return -model.energy.config.bound, model.energy.config.bound


def _worst(model: Model, found: Measured) -> list[dict[str, Any]]:
    """The last words of the prompts whose draws are worth least."""
    if found.draws is None:
        return []
    prompts = found.draws.x.rows(slice(0, None, found.draws.log_weight.shape[1])).prompts()
    rows = []
    for place in found.worst(WORST):
        one, start = found.reliability[place], int(prompts.start[place])
        text = model.tokenizer.decode([prompts.tokens[place, :start].tolist()])[0]
        rows.append(
            {
                "prompt_ends_with": " ".join(text.split()[-LAST_WORDS:]),
                "effective_draws": one.effective,
                "largest_weight": one.largest,
                "pareto_k": one.pareto_k,
                "verdict": one.verdict,
            }
        )
    return rows


def claim(folder: Path, model: Model, settings: Measuring, draws: int) -> None:
    """A folder of draws belongs to one model, seed and number of draws: any other is refused."""
    energy = model.target.energy
    own = {
        "base": base_digest(model.base),
        "energy": digest(module_tensors(energy)) if isinstance(energy, nn.Module) else repr(model.energy),
        "draws": draws,
        "step_draws": settings.step_draws,
        "seed": settings.seed,
    }
    file = folder / SETTINGS
    if file.is_file():
        refuse_change(f"The measuring in {folder}", json.loads(file.read_text()), own)
    else:
        write_json(file, own)
