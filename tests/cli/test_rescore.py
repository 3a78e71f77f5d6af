"""esscher rescore as a user meets it, and the comparison of systems behind it."""

import json

import pytest
import torch
from cli_calls import answer, call
from small_networks import lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.data.nbest import Candidate, NBest
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import save_base
from esscher.metrics.text_metrics import WordErrorRate
from esscher.networks.recurrent_config import GruConfig
from esscher.workflow.rescore import choose_texts, compare_systems, score_names

WORDS = ["cab", "bad", "bead", "dab", "face"]


def made_lists(count: int, *, references: bool = True) -> list[NBest]:
    """The given score is right for every second list, log_base for about 7 of 10, log_weight for all."""
    lists = []
    for number in range(count):
        pick = SeededRng(number).categorical
        right, wrong = (" ".join(WORDS[k] for k in row) for row in pick(torch.zeros(2, 5), 4).tolist())
        helps = float(pick(torch.zeros(1, 10))[0, 0] > 2)
        candidates = [
            Candidate(wrong, {"score": -1.0, "log_base": 1 - helps, "log_weight": 0.0}),
            Candidate(right, {"score": -1.2 if number % 2 else -0.8, "log_base": helps, "log_weight": 3.0}),
        ]
        candidates.sort(key=lambda one: -one.scores["score"])
        lists.append(NBest(f"id {number}", tuple(candidates), (right,) if references else ()))
    return lists


def write(file, lists):
    file.write_text("".join(item.to_json() + "\n" for item in lists))
    return str(file)


@pytest.fixture
def base(tmp_path):
    tokenizer = train_tokenizer("character", [*WORDS, " "])
    made = lively(GruConfig(12, 1), Space(tokenizer.vocab_size, 8, eos=tokenizer.eos))
    return str(save_base(tmp_path / "base", made, tokenizer))


def test_each_system_adds_a_score_and_differences_are_chosen_alone():
    lists = made_lists(120)
    assert score_names(lists) == ["score", "log_base", "log_weight", "words"]
    compared = compare_systems(lists[:60], lists[60:], WordErrorRate(), restarts=2, rng=SeededRng(0))
    names = ["first candidate", "given scores", "base alone", "base", "energy", "oracle"]
    assert list(compared.values) == names
    first, base, energy, oracle = (compared.values[names[place]].value for place in (0, 3, 4, 5))
    assert first > base > energy == oracle == compared.tuned["energy"] == 0
    assert set(compared.weights["given scores"]) == {"score", "words"}
    assert set(compared.best_weights) == {"score", "log_base", "log_weight", "words"}
    by = compared.differences
    assert by["energy", "base"].value == pytest.approx(energy - base)
    assert by["energy", "base"].high < 0
    assert set(by) == {
        ("given scores", "first candidate"), ("base alone", "first candidate"), ("base", "first candidate"),
        ("energy", "first candidate"), ("base", "given scores"), ("energy", "base"), ("base", "base alone"),
    }  # fmt: skip
    assert compared == compare_systems(lists[:60], lists[60:], WordErrorRate(), restarts=2, rng=SeededRng(0))
    assert choose_texts(lists[60:], compared.best_weights) == {item.id: item.references[0] for item in lists[60:]}


def test_scored_lists_need_no_model_and_weights_are_kept(capsys, tmp_path):
    lists, weights, chosen = write(tmp_path / "lists.jsonl", made_lists(80)), tmp_path / "w.json", tmp_path / "chosen.jsonl"
    compared = answer(capsys, "rescore", lists, "--weights-out", str(weights), "--seed", "3")
    assert compared["seed"] == 3 and compared["tuned_on"] + compared["tested_on"] == 80 and compared["base"] is None
    assert compared["systems"][4]["word error rate"]["value"] == 0
    assert answer(capsys, "rescore", lists, "--seed", "3") == compared
    assert {"score", "log_base", "log_weight", "words"} == set(json.loads(weights.read_text()))
    bare = write(tmp_path / "bare.jsonl", made_lists(5, references=False))
    chosen_alone = answer(capsys, "rescore", bare, "--weights", str(weights), "--chosen", str(chosen))
    assert "nothing was measured" in chosen_alone["notes"][0] and chosen_alone["tested_on"] == 5
    lines = [json.loads(line) for line in chosen.read_text().splitlines()]
    assert lines == [{"id": made_list.id, "text": made_list.references[0]} for made_list in made_lists(5)]
    judged = answer(capsys, "rescore", lists, "--weights", str(weights))
    assert [row["system"] for row in judged["systems"]] == ["first candidate", "given weights", "oracle"]
    assert judged["tested_on"] == 80 and judged["systems"][1]["word error rate"]["value"] == 0


def test_a_base_scores_the_lists_and_a_second_run_reads_them(capsys, tmp_path, base):
    plain = [
        NBest(made_list.id, tuple(Candidate(each.text.upper()) for each in made_list.candidates), made_list.references)
        for made_list in made_lists(24)
    ]
    lists, tune = write(tmp_path / "lists.jsonl", plain[:12]), write(tmp_path / "tune.jsonl", plain[12:])
    out = tmp_path / "scored.jsonl"
    inputs = (lists, "--tune", tune, "--base", base, "--lowercase", "--out", str(out), "--quiet", "--metric", "bleu")
    compared = answer(capsys, "rescore", *inputs)
    assert [row["system"] for row in compared["systems"]] == ["first candidate", "base", "oracle"]
    assert (compared["tuned_on"], compared["tested_on"]) == (12, 12) and "BLEU" in compared["systems"][0]
    assert len(out.read_text().splitlines()) == 24
    assert answer(capsys, "rescore", *inputs) == compared
    code, shown, _ = call(capsys, "rescore", str(out), "--top", "1")
    assert code == 0 and "first candidate" in shown and "oracle" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["LISTS", "--energy", "x"], "Nothing can be scored without a base"),
        (["LISTS", "--out", "x"], "Nothing can be scored without a base"),
        (["LISTS", "--top", "0"], "top is at least 1, not 0"),
        (["LISTS", "--tune", "LISTS"], "8 lists are in"),
        (["LISTS", "--tune", "OTHER"], "have the scores words, and those to test have score"),
        (["LISTS", "--tune-share", "1"], "between 0 and 1, not 1"),
        (["LISTS", "--tune", "LISTS", "--weights", "x"], "Weights are given, so there is nothing to tune"),
        (["LISTS", "--weights", "LISTS"], "holds no weights"),
        (["LISTS", "--weights", "WEIGHTS"], "There is a weight for 'acoustic', and the lists have no such score"),
        (["BARE"], "has no reference"),
        (["OTHER"], "The lists have no score at all"),
        (["nowhere.jsonl"], "There is no file nowhere.jsonl"),
        (["LISTS", "--base", "nowhere"], "There is no model folder nowhere"),
    ],
)
def test_errors_say_what_to_do(capsys, tmp_path, arguments, message):
    weights = tmp_path / "w.json"
    weights.write_text('{"acoustic": 1}')
    other = [NBest(f"other {number}", (Candidate("a"),), ("a",)) for number in range(9)]
    files = {
        "LISTS": write(tmp_path / "lists.jsonl", made_lists(8)),
        "BARE": write(tmp_path / "bare.jsonl", made_lists(8, references=False)),
        "OTHER": write(tmp_path / "other.jsonl", other),
        "WEIGHTS": str(weights),
    }
    code, out, err = call(capsys, "rescore", *[files.get(argument, argument) for argument in arguments], "--json")
    assert (code, message in err) == (1, True), err
    assert json.loads(out.splitlines()[-1])["error"] == err.removeprefix("esscher: ").strip()
