"""Rows of recipes that train bases on one long text and compare how well they predict the rest of it.

A row is a model with a seed, looked at in one or several ways (how far back it sees, whether it learns from what it reads).
The log-probability of every test token is kept in the run folder, so rows are compared token by token, and a finished row is
not made again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.bases.network import NetworkBase, with_sight
from esscher.data.streams import TextStream
from esscher.estimate import Estimate
from esscher.estimators.blocks import ratio_of_sums
from esscher.estimators.streams import read_stream
from esscher.hub import load_base
from esscher.recipes.rows import ROW, kept, means_over_seeds, place_of, run_at, size_of
from esscher.recipes.stream_studies import Look, StreamStudy
from esscher.settings.dynamic import DynamicConfig
from esscher.settings.train import TrainRun
from esscher.storage import read_tensors, write_tensors
from esscher.training.dynamic import read_learning, said, stream_reader
from esscher.training.progress import choose_progress
from esscher.verbs.measure_dynamic import statistics_for
from esscher.verbs.measure_stream import StreamMeasuring
from esscher.verbs.models import load_model
from esscher.verbs.train import train
from esscher.verbs.training_streams import StreamMaterial

SCORES = "scores.safetensors"


def run_studies(studies: Sequence[StreamStudy], out: Path, seeds: int) -> list[dict[str, Any]]:
    """All rows of all studies, compared with the one that a study names, seed by seed; then over seeds."""
    rows = []
    for study in studies:
        made = [make_rows(study, model, seed, out / study.name) for seed in range(seeds) for model in study.models]
        rows += compared(study, [row for some in made for row in some], out / study.name)
    return rows


def make_rows(study: StreamStudy, model: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """The rows of one trained model, from the folder if they are there."""
    place = place_of(folder, model, seed)

    def make() -> dict[str, Any]:
        result = train(run_of(study, model, seed, folder), resume=True)
        assert isinstance(result.material, StreamMaterial)
        test = _first(result.material.test, study.most)
        scores = {look.name: _scores(place, look, test) for look in study.ways(model)}
        size = test.units()[study.unit].double()
        write_tensors(place / SCORES, {**scores, study.unit: size})
        parameters = size_of(result.base)
        rows = [
            {"text": study.name, "model": model, "sees": name, "seed": seed, "parameters": parameters,
             "steps": result.record.steps, "bits": _bits(score, size, study.unit)}
            for name, score in scores.items()
        ]  # fmt: skip
        return {"rows": rows}

    return kept(place / ROW, make)["rows"]


def compared(study: StreamStudy, rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Rows with the bits that each model saves against another, token by token, of the same seed."""
    found = []
    for row in rows:
        other = read_tensors(place_of(folder, study.against, row["seed"]) / SCORES)
        own = read_tensors(place_of(folder, row["model"], row["seed"]) / SCORES)
        more = own[row["sees"]] - other[Look().name]
        same = row["model"] == study.against and row["sees"] == Look().name
        saved = None if same else _bits(-more, own[study.unit], study.unit, f", one by one less than {study.against}")
        found.append({**row, "saved": saved})
    return found


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean over seeds of each model and way to look."""
    return means_over_seeds(rows, ("text", "model", "sees"), ("bits", "saved"))


def with_perplexity(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of words also with their perplexity, as is usual."""
    return [
        {**row, "perplexity": row["bits"].map(lambda bits: 2**bits, unit="per token")}
        if row["bits"].unit == "bits per token"
        else dict(row)
        for row in rows
    ]


def run_of(study: StreamStudy, model: str, seed: int, folder: Path) -> TrainRun:
    """How a model is trained with a seed, and where."""
    run = study.models[model]
    here = run_at(run, place_of(folder, model, seed), seed)
    return here if run.start is None else replace(here, start=str(place_of(folder, run.start, seed)))


def _scores(place: Path, look: Look, test: TextStream) -> Tensor:
    """log a of every test token under the model of a folder, in single precision."""
    if look.learning is not None:
        return _learning_scores(place, look.learning, test)
    base, _ = load_base(place)
    assert isinstance(base, NetworkBase)
    if look != Look():
        base = with_sight(base, reach=look.reach, clamp=look.clamp)
    columns = StreamMeasuring().columns(len(test))
    return read_stream(base, test.tokens, streams=columns, segment=base.space.max_length).float()


def _learning_scores(place: Path, config: DynamicConfig, test: TextStream) -> Tensor:
    model, say = load_model(place), choose_progress(False).say
    statistics_of, _ = statistics_for(model, config, say=say)
    reader = said(stream_reader(test.tokens[None], config.segment), "learning", len(test), say)
    return torch.cat(read_learning(model.base, reader, config, statistics_of)).float()


def _first(text: TextStream, most: int | None) -> TextStream:
    return TextStream(text.tokens[:most], text.words[:most], text.characters[:most], text.bytes[:most])


def _bits(log_prob: Tensor, size: Tensor, unit: str, how: str = "") -> Estimate:
    """Bits per unit, with blocks of neighbouring tokens as replicates."""
    nats = -log_prob.double()
    return ratio_of_sums(nats / math.log(2), size, level=0.95, of=f"tokens{how}", unit=f"bits per {unit}")
