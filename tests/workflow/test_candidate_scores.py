"""Scores of models for candidates: exact, kept, gone on with, and never those of another model."""

import pytest
import torch
from small_networks import lively

import esscher.workflow.rescore as candidate_scores
from esscher.core.estimate import Estimate
from esscher.core.space import Space, sequences
from esscher.data.nbest import Candidate, NBest, read_nbest
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.hub import load_base, save_base
from esscher.networks.recurrent_config import GruConfig
from esscher.workflow.rescore import LOG_BASE, LOG_WEIGHT, score_candidates

LISTS = [
    NBest("one", (Candidate("a cabbage", {"score": 1.0}), Candidate("a cab", {"score": 0.5})), ("a cab",)),
    NBest("two", (Candidate("", {"score": 1.0}), Candidate("b", {"score": 0.5}), Candidate("a cab", {"score": 0.1}))),
    NBest("three", (Candidate("bad " * 6, {"score": 1.0}),)),
]


@pytest.fixture
def base(tmp_path):
    """A base whose longest point is shorter than some candidates."""
    tokenizer = train_tokenizer("character", ["a cabbage bed"])
    made = lively(GruConfig(12, 1), Space(tokenizer.vocab_size, 8, eos=tokenizer.eos))
    return save_base(tmp_path / "base", made, tokenizer)


@pytest.fixture
def energy(tmp_path, base):
    weight = Estimate.exact(1.5)
    saved = SavedLogLinear((FeatureSpec("contains", "cab"),), (weight,), str(base), base_digest(load_base(base)[0]), weight, 0)
    return save_energy(tmp_path / "energy", saved)


@pytest.fixture
def runs(monkeypatch):
    """The texts that a model had to read, score by score."""
    seen, real = [], candidate_scores._score_by_length

    def counted(score, texts, model):
        seen.append(list(texts))
        return real(score, texts, model)

    monkeypatch.setattr(candidate_scores, "_score_by_length", counted)
    return seen


def test_scores_are_exact_whatever_shares_a_pass(base, energy, monkeypatch):
    monkeypatch.setattr(candidate_scores, "TOKENS", 7)
    monkeypatch.setattr(candidate_scores, "CANDIDATES_PER_SHARD", 3)
    model, tokenizer = load_base(base)
    scored = score_candidates(LISTS, base, energy)
    assert [(item.id, item.texts, item.references) for item in scored] == [
        (item.id, item.texts, item.references) for item in LISTS
    ]
    for candidate in (candidate for nbest in scored for candidate in nbest.candidates):
        alone = sequences([[*tokenizer.encode([candidate.text])[0], tokenizer.eos]])
        with torch.no_grad():
            exact = float(model.log_probs(alone).double().sum())
        assert candidate.scores[LOG_BASE] == pytest.approx(exact, abs=1e-5)
        assert candidate.scores[LOG_WEIGHT] == 1.5 * ("cab" in candidate.text)
        assert set(candidate.scores) == {"score", LOG_BASE, LOG_WEIGHT}


@pytest.mark.parametrize("lost", [0, 1, 40, 10_000])
def test_a_run_that_was_stopped_goes_on(base, tmp_path, runs, monkeypatch, lost):
    monkeypatch.setattr(candidate_scores, "CANDIDATES_PER_SHARD", 2)
    out = tmp_path / "deep" / "scored.jsonl"
    whole = score_candidates(LISTS, base, out=out)
    content = out.read_bytes()
    assert read_nbest(out) == whole
    runs.clear()
    out.write_bytes(content[: max(0, len(content) - lost)])
    assert score_candidates(LISTS, base, out=out) == whole == read_nbest(out)
    assert out.read_bytes() == content
    assert len(runs) == {0: 0, 1: 1, 40: 1, 10_000: 3}[lost]


def test_a_finished_file_needs_no_model(base, tmp_path, monkeypatch):
    out = tmp_path / "scored.jsonl"
    whole = score_candidates(LISTS, base, out=out)
    monkeypatch.setattr(candidate_scores, "load", lambda *arguments, **keywords: pytest.fail("a model was loaded"))
    assert score_candidates(LISTS, base, out=out) == whole
    assert score_candidates(read_nbest(out), base, out=tmp_path / "copy.jsonl") == whole == read_nbest(tmp_path / "copy.jsonl")


def test_an_energy_is_added_without_running_the_base_again(base, energy, tmp_path, runs):
    first = score_candidates(LISTS, base, out=tmp_path / "first.jsonl")
    runs.clear()
    both = score_candidates(read_nbest(tmp_path / "first.jsonl"), base, energy, out=tmp_path / "both.jsonl")
    assert [len(texts) for texts in runs] == [5]  # different texts, read by the energy only
    assert both == score_candidates(LISTS, base, energy)
    assert [item.candidates[0].scores[LOG_BASE] for item in both] == [item.candidates[0].scores[LOG_BASE] for item in first]


def test_scores_of_other_models_are_not_mixed(base, energy, tmp_path, runs):
    out = tmp_path / "scored.jsonl"
    mine = score_candidates(LISTS, base, out=out)
    content = out.read_bytes()
    tokenizer = load_base(base)[1]
    other = save_base(tmp_path / "other", lively(GruConfig(12, 1), load_base(base)[0].space, seed=2), tokenizer)
    for given, what in [
        ((LISTS, other), "scores of other models: list 'one'"),
        ((LISTS, base, energy), "scores of other models: list 'one'"),
        (([item.top(1) for item in LISTS], base), "other candidates: list 'one'"),
        ((LISTS[1:], base), "other candidates: list 'one'"),
    ]:
        with pytest.raises(ValueError, match=f"holds {what} .*choose another --out"):
            score_candidates(*given, out=out)
    assert out.read_bytes() == content
    runs.clear()
    again = score_candidates(mine, other)
    assert len(runs) == 1 and again[0].candidates[0].scores != mine[0].candidates[0].scores


def test_bad_input(base, tmp_path):
    with pytest.raises(ValueError, match=r"name scored.jsonl instead of scored.jsonl.gz"):
        score_candidates(LISTS, base, out=tmp_path / "scored.jsonl.gz")
    with pytest.raises(FileNotFoundError, match="There is no model folder"):
        score_candidates(LISTS, tmp_path / "nowhere")
