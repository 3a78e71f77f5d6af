"""Rows of the recipes on XLNet: a way to pretrain with a seed, fine-tuned on every task; an energy from a pretrained network.

A finished row stays in the folder of the run as `row.json` and is not made again; one that was stopped goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.bases.network import build_base
from esscher.data.tokenizers import load_tokenizer
from esscher.hub import save_base
from esscher.hub.folder import CONFIG
from esscher.randomness import Seeded
from esscher.recipes.rows import ROW, kept, place_of, run_at
from esscher.recipes.xlnet_studies import NOTHING, STARTS, XLNetStudy
from esscher.settings.train import TrainRun
from esscher.space import Space
from esscher.training.processes import is_made
from esscher.verbs.contrast import LearntEnergy
from esscher.verbs.finetune import finetune
from esscher.verbs.run_folder import RESULTS
from esscher.verbs.tilt import tilt
from esscher.verbs.train import train

PRETRAINED = "pretrained"


def run_studies(studies: Sequence[XLNetStudy], out: Path, seeds: int) -> list[dict[str, Any]]:
    """All rows of all studies, with every seed."""
    return [
        make_row(study, name, seed, out / study.name)
        for study in studies
        for seed in range(seeds)
        for name in study.of_seed(seed)
    ]


def run_energies(studies: Sequence[XLNetStudy], out: Path, seeds: int) -> list[dict[str, Any]]:
    """The energies of all studies, with every seed."""
    return [
        make_energy_row(study, start, seed, out / study.name)
        for study in studies
        if study.energies is not None
        for seed in range(seeds)
        for start in STARTS
    ]


def make_row(study: XLNetStudy, name: str, seed: int, folder: Path) -> dict[str, Any]:
    """The row of one way to pretrain: what each task's test data say; from the folder if it is there."""
    place = place_of(folder, name, seed)

    def make() -> dict[str, Any]:
        start = pretrain(study, name, seed, folder)
        found: dict[str, Any] = {"text": study.name, "pretrained": name, "seed": seed}
        for task, run in study.tasks.items():
            here = replace(run, out=str(place / task), training=replace(run.training, seed=seed))
            result = finetune(str(start), here, resume=True)
            found |= {f"{task}, {metric}": value for metric, value in result.measured.items()}
        return found

    return kept(place / ROW, make)


def pretrain(study: XLNetStudy, name: str, seed: int, folder: Path) -> Path:
    """The folder of the pretrained network; of none, of its first weights."""
    run, place = study.pretrained[name], place_of(folder, name, seed) / PRETRAINED
    if not is_made(place / (CONFIG if name == NOTHING else RESULTS)):
        here = run_at(run, place, seed)
        if name == NOTHING:
            _first_weights(here, place)
        else:
            train(here, resume=True)
    return place


def make_energy_row(study: XLNetStudy, start: str, seed: int, folder: Path) -> dict[str, Any]:
    """The row of an energy that starts from a pretrained network with this seed, on the one base of the study."""
    energies, place = study.energies, place_of(folder, f"energy from {start}", seed)
    if energies is None:
        raise ValueError(f"The study {study.name!r} has no energies. Nothing was made.")

    def make() -> dict[str, Any]:
        base = folder / "base"
        if not is_made(base / RESULTS):
            train(replace(energies.base, out=str(base)), resume=True)
        choice = replace(energies.tilt.energy, start=str(pretrain(study, start, seed, folder)))
        made = tilt(str(base), replace(energies.tilt, out=str(place), energy=choice, seed=seed), resume=True)
        assert isinstance(made, LearntEnergy) and made.measured.tilted is not None and made.measured.saved is not None
        told = {
            "base": made.measured.base["token"], "tilted": made.measured.tilted["token"],
            "saved": made.measured.saved["token"], "log Z": made.measured.log_z,
        }  # fmt: skip
        row = {"text": study.name, "energy starts from": start, "seed": seed, "best step": made.record.best_step}
        return {**row, **{name: value for name, value in told.items() if value is not None}}

    return kept(place / ROW, make)


def _first_weights(run: TrainRun, place: Path) -> None:
    """A folder of the network before it learns, with the tokenizer of the others."""
    tokenizer = load_tokenizer(run.tokenizer.kind)
    space = Space(tokenizer.vocab_size, run.length.tokens)
    save_base(place, build_base(run.base.resolve(), space, rng=Seeded(run.training.seed).stream("base")), tokenizer)
