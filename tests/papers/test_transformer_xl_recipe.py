"""Recipes on long memory: what they study, how rows are compared, and the smallest run of each."""

import json
import math
from dataclasses import replace

import pytest
import torch

from esscher.bases.network import build_base, build_network
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.core.storage import write_tensors
from esscher.networks.transformer_config import TransformerXLConfig
from esscher.papers.streams import SCORES, EvaluationMode, StreamStudy, over_seeds, save_over_seeds, with_savings
from esscher.papers.study import StudyContext
from esscher.papers.transformer_xl import studies
from esscher.papers.transformer_xl.claims import LSTM, NO_MEMORY, XL, claims_of
from esscher.papers.transformer_xl.generation import continue_stream
from esscher.papers.transformer_xl.recipe import run_local_xl as run_local
from esscher.papers.transformer_xl.recipe import run_transformer_xl
from esscher.papers.transformer_xl.studies import local_studies, longer_studies, memory_studies


@pytest.mark.slow
def test_the_smoke_scales_make_every_row_once(tmp_path):
    actual = run_transformer_xl(StudyContext(scale="smoke", out=tmp_path / "memory", seeds=1))
    assert [(row["model"], row["evaluated"]) for row in actual["rows"]] == [
        (NO_MEMORY, "as in training"), (NO_MEMORY, "15 back"), (XL, "as in training"), (XL, "32 back"),
        *((model, "as in training") for model in (NO_MEMORY, XL, LSTM)),
    ]  # fmt: skip
    assert len({row["parameters"] for row in actual["rows"][:6]}) == 1
    assert [row["model"] for row in actual["context lengths"]] == [NO_MEMORY, XL, LSTM]
    for row in actual["context lengths"]:
        assert all(value.value in (8, 16, 24) for value in row.values() if isinstance(value, Estimate))
    (sample,) = actual["samples"]
    assert 180 < len(sample["prompt"]) <= 200 and 400 < len(sample["sample"]) <= 500, "unknown characters are not shown"
    assert sample["own bits"].unit == "bits per token" and sample["own bits"].n == 500
    result = json.loads((tmp_path / "memory/transformer_xl.json").read_text())
    assert result["missing"] == 0 and len(result["levels"]) == 7 and result["samples"][0]["sample"] == sample["sample"]
    assert len(result["effects"]) == 5 and {row["verdict"] for row in result["effects"]} == {"open"}
    assert "Transformer-XL" in (tmp_path / "memory/report.html").read_text()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("row.json")}
    assert run_transformer_xl(StudyContext(scale="smoke", out=tmp_path / "memory", seeds=1))["rows"] == actual["rows"]
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert len(run_local(StudyContext(scale="smoke", out=tmp_path / "local", seeds=1))["rows"]) == 5


def test_what_is_studied_at_each_scale(tmp_path, monkeypatch):
    absent = {name: (type(data)(str(tmp_path / name)), *rest) for name, (data, *rest) in studies.TEXTS.items()}
    monkeypatch.setattr(studies, "TEXTS", absent)
    actual, missing = memory_studies("small")
    assert actual == [] and len(missing) == 3 and "is not here" in missing[0]
    for scale in ("smoke", "paper"):
        for study in [*memory_studies(scale)[0], *local_studies(scale)[0]]:
            assert study.baseline in study.models
            for value in study.models.values():
                assert isinstance(value.base, TransformerXLConfig) and value.length.stream
    published = {study.name: study for study in memory_studies("paper")[0]}
    assert set(published) == {"enwik8", "text8", "WikiText-103", "One Billion Word", "Penn Treebank"}
    assert published["WikiText-103"].models["16 layers"].base.head_width == 41


def test_the_longer_study_has_networks_of_one_size():
    with torch.device("meta"):
        sizes = [build_network(config, 28).parameters() for config in (studies.RECURRENT, studies.SMALL)]
    recurrent, transformer = (sum(weight.numel() for weight in weights) for weights in sizes)
    assert recurrent == pytest.approx(transformer, rel=0.02) and not longer_studies("paper")
    (study,) = longer_studies("smoke")
    assert list(study.models) == [NO_MEMORY, XL, LSTM] and study.names_for_seed(1) == ()
    assert len({replace(run, base=studies.SMALL) for run in study.models.values()}) == 1


def test_released_evaluations_count_the_position_itself():
    """mem_len and clamp_len of the released scripts, all with `same_length`; for Penn Treebank there is none."""
    released = {
        "enwik8": [(2_100, 820), (3_800, 1_000)], "text8": [(2_100, 820), (3_800, 1_000)],
        "WikiText-103": [(640, 400), (1_600, 1_000)], "One Billion Word": [(128, None), (128, None)],
    }  # fmt: skip
    for study in memory_studies("paper")[0]:
        modes = [mode for modes in study.evaluation_modes.values() for mode in modes]
        if study.name in released:
            assert [(mode.attention_span + 1, mode.clamp) for mode in modes] == released[study.name]
            assert not any(run.base.same_length or run.base.clamp_len for run in study.models.values())


def test_rows_are_compared_token_by_token_and_seed_by_seed(tmp_path):
    """A model that is better by a tenth of a bit at every token saves exactly that, however much texts differ."""
    study = StreamStudy(name="text", unit="character", models={}, baseline=NO_MEMORY)
    context, rows = StudyContext(scale="smoke", out=tmp_path, seeds=3), []
    for seed in range(3):
        plain = -torch.rand(4_000, generator=torch.Generator().manual_seed(seed)) * 5
        for model, score in ((NO_MEMORY, plain), (XL, plain + (0.1 + 0.01 * seed) * math.log(2))):
            run_dir = context.run_dir("text", model, seed)
            write_tensors(run_dir / SCORES, {EvaluationMode().name: score, "character": torch.ones(4_000).double()})
            bits = Estimate.exact(-float(score.double().mean()) / math.log(2), unit="bits per character")
            rows.append({"text": "text", "model": model, "evaluated": EvaluationMode().name, "seed": seed, "bits": bits})
    actual = with_savings(context, study, rows)
    assert actual[0]["saved"] is None
    for seed in range(3):
        saved = actual[2 * seed + 1]["saved"]
        assert saved.value == pytest.approx(0.1 + 0.01 * seed, abs=1e-5) and saved.high - saved.low < 1e-4
    mean = over_seeds(actual)[1]["saved"]
    half = 4.302653 * 0.01 / math.sqrt(3)  # Student's quantile with 2 degrees of freedom
    assert mean.value == pytest.approx(0.11, abs=1e-5) and mean.high - mean.value == pytest.approx(half, rel=1e-3)
    assert over_seeds(actual[:2]) == []
    save_over_seeds([], tmp_path / "none.png")
    save_over_seeds(over_seeds(actual), tmp_path / "bits.png")
    assert (tmp_path / "bits.png").exists() and not (tmp_path / "none.png").exists()


@torch.no_grad()
def test_a_sample_goes_on_from_its_memory():
    """Drawn again with the same random numbers, each token from its distribution given everything before it, which is read anew
    in the same segments; the prompt and the sample end in the middle of one."""
    base = build_base(TransformerXLConfig(8, 2, 2, 16, memory=3), Space(5, 3), rng=SeededRng(3)).eval()
    for weight in base.parameters():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    prompt, length = torch.tensor([1, 4, 0, 2]), 20
    sample = continue_stream(base, prompt, length, rng=SeededRng(0))

    def next_scores(tokens, first):
        """The score of every token after the prompt and these tokens, of which those from `first` on are of its segment."""
        memory = base.init_memory(1)
        for part in (prompt[:3], prompt[3:], *tokens[:first].split(3)):
            if len(part):
                _, memory = base.read(memory, part[None])
        rows = [base.read(memory, torch.cat([tokens[first:], torch.tensor([token])])[None])[0][0, -1] for token in range(5)]
        return torch.stack(rows)

    tokens, scores = torch.empty(0, dtype=torch.long), []
    for place in range(length):
        first = place - place % 3
        choices = SeededRng(0).stream("segment", first).tokens(1, torch.device("cpu")) if place == first else choices
        each = next_scores(tokens, first)
        token = choices.categorical(each[None])
        tokens, scores = torch.cat([tokens, token]), [*scores, float(each[token])]
    assert sample.tokens.tolist() == tokens.tolist() and len(set(tokens.tolist())) > 2
    assert sample.log_probs.tolist() == pytest.approx(scores, abs=1e-4)


def test_claims_are_of_studies_with_and_without_a_memory():
    (study,) = longer_studies("smoke")
    assert [claim.side.model for claim in claims_of([study])] == [XL, XL] and claims_of(local_studies("smoke")[0]) == []
    window, longer = EvaluationMode(63), EvaluationMode(256)
    study = replace(study, evaluation_modes={NO_MEMORY: [window], XL: [longer]})
    sides = [(claim.side.evaluated, claim.against.model, claim.against.evaluated) for claim in claims_of([study])]
    plain = EvaluationMode().name
    assert sides == [
        (plain, NO_MEMORY, plain), (plain, NO_MEMORY, window.name), (longer.name, XL, plain), (plain, LSTM, plain)
    ]  # fmt: skip
