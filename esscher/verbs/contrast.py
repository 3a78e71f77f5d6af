"""Tilting a base by a network: it learns to tell data from draws of the base, then fresh draws say what the tilt is worth.

    found = learn_energy(base, energy, sets, ContrastConfig(), TrainingConfig(), folder=folder)

Negatives are drawn at every step, or once, in pieces that stay in the folder: drawing that was stopped goes on. Those of the
validation data are always drawn once, so that every evaluation has the same. At the end base and tilted model are measured
on test data that neither the weights nor the choice among them has seen.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from jaxtyping import Int
from torch import Tensor, nn

from esscher.draws import Sampler
from esscher.estimators.measured import Measured, measure
from esscher.objectives.negatives import StoredNegatives, joined, load_negatives, name_of, store_negatives
from esscher.objectives.noise_contrast import NoiseContrast
from esscher.randomness import Rng, Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.settings.tilt import ContrastConfig
from esscher.settings.training import TrainingConfig
from esscher.space import Sequences, distinct_prompts
from esscher.target import Base, Tilted
from esscher.training.draws_in_pieces import SHARD, InPieces
from esscher.training.evaluation import HeldOut
from esscher.training.loop import TrainingRecord
from esscher.training.pieces import Piece, in_pieces
from esscher.training.progress import choose_progress
from esscher.training.trainer import Trainer
from esscher.verbs.subsets import evenly, spread

PIECE = 64  # prompts whose negatives share a file
EACH = 64  # draws for each prompt in the end, where there are several


@dataclass(frozen=True)
class Sets:
    """Sequences to learn from, to choose by and to judge by; `units` are the sizes of the last by unit."""

    train: Sequences
    validation: Sequences
    test: Sequences
    units: Mapping[str, Int[Tensor, "B"]]


@dataclass(frozen=True)
class LearntEnergy:
    """The tilted model, how training went, and what test data say of it."""

    target: Tilted
    record: TrainingRecord
    measured: Measured


def learn_energy(
    base: Base,
    energy: nn.Module,
    sets: Sets,
    config: ContrastConfig,
    training: TrainingConfig,
    *,
    folder: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> LearntEnergy:
    """Train the energy in place; the base is never moved."""
    rng, say = Seeded(training.seed).stream("contrast"), choose_progress(quiet).say
    target = Tilted(base, energy)
    train, held_out = evenly(sets.train, config.sequences), evenly(sets.validation, config.held_out)
    store = _Store(base, folder, say, rng)
    noise: Sampler = Ancestral() if config.stored is None else store("negatives", train, config.stored)
    objective = NoiseContrast(noise, config.negatives, config.form, config.prefixes)
    judge = NoiseContrast(store("held-out", held_out, config.negatives), config.negatives, config.form)
    record = Trainer(training, quiet)(
        objective, target, train, modules=energy, validation=HeldOut(judge, held_out), folder=folder, resume=resume
    )
    sampler = InPieces(Importance(), None if folder is None else folder / "judge", say=say)
    return LearntEnergy(target, record, judge_energy(target, sets, sampler, config.draws, rng=rng.stream("judge")))


def judge_energy(target: Tilted, sets: Sets, sampler: Sampler, draws: int, *, rng: Rng) -> Measured:
    """Base and tilted model on test data, with so many draws in all: of one prompt, or shared by several."""
    test, units = judged(sets, draws)
    each = draws if len(distinct_prompts(test)[0]) == 1 else EACH
    return measure(target, test, sampler, each, units=units, rng=rng)


def judged(sets: Sets, draws: int) -> tuple[Sequences, dict[str, Int[Tensor, "B"]]]:
    """The test data that so many draws suffice for, and their units: all of one prompt, some of many."""
    several = len(distinct_prompts(sets.test)[0]) > 1
    chosen = spread(len(sets.test), max(2, draws // EACH) if several else len(sets.test))
    return sets.test.rows(chosen), {name: count[chosen] for name, count in sets.units.items()}


@dataclass(frozen=True)
class _Store:
    """Negatives drawn once, in pieces that the folder keeps."""

    base: Base
    folder: Path | None
    say: Callable[[str], None]
    rng: Rng

    @cached_property
    def known(self) -> str:
        """The base's name, which takes a look at all its weights."""
        return name_of(self.base)

    def __call__(self, name: str, data: Sequences, each: int) -> StoredNegatives:
        """`each` for every sequence of the data; sequences of one prompt share theirs."""
        prompts, _ = distinct_prompts(data)
        each, known = each * math.ceil(len(data) / len(prompts)), self.known

        def piece(number: int, part: Sequences, count: int) -> Piece[StoredNegatives]:
            own = partial(store_negatives, self.base, part, count, rng=self.rng.stream(name, number), known=known)
            return Piece(f"{number:05d}", len(part) * count, own)

        tables = in_pieces(
            [piece(number, *some) for number, some in enumerate(_pieces(prompts, each))],
            folder=None if self.folder is None else self.folder / name,
            read=partial(load_negatives, base=self.base, known=known),
            write=lambda file, table: table.save(file),
            say=self.say,
            what=f"{name}: drawn",
        )
        return joined(tables)


def _pieces(prompts: Sequences, each: int) -> Iterator[tuple[Sequences, int]]:
    """Some prompts and so many draws of each of them: some of the prompts, or some of the draws of the only one."""
    if len(prompts) == 1:
        for first in range(0, each, SHARD):
            yield prompts, min(SHARD, each - first)
    else:
        for first in range(0, len(prompts), PIECE):
            yield prompts.rows(slice(first, first + PIECE)), each
