"""Effects of pretraining on tasks: paired within a seed, over seeds, with their verdicts."""

import json

import pytest

from esscher.core.estimate import Estimate
from esscher.papers.study import OPEN, REFUTED, REPRODUCED, StudyContext
from esscher.papers.xlnet.span_scores import DENOISING, PERMUTED
from esscher.papers.xlnet.task_effects import CAUSAL, MINILM, NAIVE, NO_PRETRAINING, PICTURE, effects, keep, levels


def row(text, way, seed, **accuracies):
    values = {
        f"{task}, accuracy": Estimate(value / 100, value / 100 - 0.04, value / 100 + 0.04, 0.95, 800, "examples")
        for task, value in accuracies.items()
    }
    return {"text": text, "pretrained": way, "seed": seed, **values}


ROWS = [
    *(row("a", PERMUTED, seed, order=60 + seed, cloze=50 + 10 * seed) for seed in range(3)),
    *(row("a", NO_PRETRAINING, seed, order=50 + seed + 0.1 * (seed == 1), cloze=60 - 10 * seed) for seed in range(3)),
    *(row("a", DENOISING, seed, order=63 + seed + 0.1 * (seed == 2)) for seed in range(3)),
    row("a", CAUSAL, 0, order=70, cloze=70),
    row("a", NAIVE, 0, order=49),
    row("b", PERMUTED, 0, order=60),
    row("b", NO_PRETRAINING, 0, order=50),
]


SPANS = [{"text": "a", "tokens": 2, "seed": seed, "gain": Estimate.exact(0.5 + 0.001 * (2 * seed - 1))} for seed in range(2)]


def test_a_gain_is_taken_within_a_seed_and_needs_two():
    found = {(each["task"], each["pretrained"], each["against"]): each for each in effects(ROWS)}
    assert set(found) == {
        ("order", PERMUTED, NO_PRETRAINING), ("order", DENOISING, NO_PRETRAINING), ("order", PERMUTED, DENOISING),
        ("cloze", PERMUTED, NO_PRETRAINING),
    }  # fmt: skip
    gained = found["order", PERMUTED, NO_PRETRAINING]["gained"]
    assert gained.value == pytest.approx(10 - 0.1 / 3) and gained.high - gained.low == pytest.approx(
        2 * 4.30265 * 0.1 / 3, rel=1e-4
    )
    verdicts = {key: each["verdict"] for key, each in found.items()}
    assert verdicts["order", PERMUTED, NO_PRETRAINING] == REPRODUCED and verdicts["order", PERMUTED, DENOISING] == REFUTED
    assert verdicts["cloze", PERMUTED, NO_PRETRAINING] == OPEN  # from -10 to 30 points


def test_levels_say_how_many_seeds_they_rest_on():
    found = {(each["text"], each["task"], each["pretrained"]): each for each in levels(ROWS)}
    assert found["a", "order", PERMUTED]["seeds"] == 3 and found["a", "order", PERMUTED]["accuracy"].value == pytest.approx(61)
    single = found["a", "order", NAIVE]
    assert single["seeds"] == 1 and [single["accuracy"].low, single["accuracy"].high] == pytest.approx([45, 53])
    assert ("a", "next", PERMUTED) not in found and ("a", "cloze", NAIVE) not in found


def test_what_there_is_is_kept_and_drawn_once_every_way_is_made(tmp_path):
    context = StudyContext(scale="small", out=tmp_path)
    keep(context, [each for each in ROWS if each["pretrained"] != CAUSAL], [], missing=5)
    assert json.loads((tmp_path / "tasks.json").read_text())["missing"] == 5 and not (tmp_path / PICTURE).exists()
    keep(context, [*ROWS, row("a", MINILM, 0, order=80)], SPANS, missing=0)
    content = json.loads((tmp_path / "tasks.json").read_text())
    (span,) = content["spans"]
    assert span["gain"]["value"] == pytest.approx(0.5) and span["verdict"] == REPRODUCED and span["seeds"] == 2
    assert len(content["rows"]) == len(ROWS) + 1 and (tmp_path / PICTURE).exists()
