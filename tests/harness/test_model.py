"""lm-eval on models of this library: local tasks, offline, against enumeration and against its own model of Hugging Face."""

import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from causal_models import tiny_model
from marks import slow
from small_networks import CONFIGS, lively

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")

from esscher.bases.causal_lm import causal_lm
from esscher.core.estimate import Estimate
from esscher.core.space import Space, sequences, unique_prompts
from esscher.data.tokenizers import character_tokenizer
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.exact.enumeration import tabulate
from esscher.harness.model import EsscherLM
from esscher.hub import save_base

LETTERS = character_tokenizer("ab", unknown=False)
SPACE = Space(LETTERS.vocab_size, 4, eos=LETTERS.eos)
TEXTS, ANSWERS = ("abab", "bba"), (["b", "a", "bb"], ["a", "b", "ab"])
CHOICES = [("a", "b"), ("a", "ab"), ("a", "ba"), ("", "abb"), ("bb", "b")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    base = lively(CONFIGS["gru, one-hot"], SPACE)
    save_base(place / "base", base, LETTERS)
    item = Estimate.exact(1.3)
    feature = FeatureSpec("contains", "ab")
    saved = SavedLogLinear((feature,), (item,), str(place / "base"), base_digest(base), Estimate.exact(0.0), 0)
    return place / "base", save_energy(place / "energy", saved)


def asked(pairs):
    return [SimpleNamespace(args=pair) for pair in pairs]


def exact(model, pairs):
    """log p of continuations after contexts, from the table of all points."""
    tokens = [LETTERS.encode(pair) for pair in pairs]
    x = sequences([point for _, point in tokens], [given for given, _ in tokens])
    prompts, which = unique_prompts(x)
    return torch.where(x.counted, tabulate(model.target, prompts).log_probs(x, which), 0.0).sum(-1)


def test_continuations_have_the_probability_of_the_tilted_model(folders, tmp_path):
    model = EsscherLM(*map(str, folders), draws=4_000, record=str(tmp_path / "record.jsonl"), greedy=False)
    actual = torch.tensor([answer for answer, _ in model.loglikelihood(asked(CHOICES))])
    truth = exact(model, CHOICES)
    assert torch.allclose(actual.double(), truth, atol=0.08)
    alone = EsscherLM(str(folders[0]))
    assert not torch.allclose(
        torch.tensor([item for item, _ in alone.loglikelihood(asked(CHOICES))]).double(), truth, atol=0.08
    )
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    held = [Estimate(**line["nats"]).covers(true) for line, true in zip(lines, truth.tolist(), strict=True)]
    assert sum(held) >= 4


def test_what_is_likeliest_is_seen(folders):
    model, alone = EsscherLM(*map(str, folders), draws=2_000), EsscherLM(str(folders[0]))
    for item in (model, alone):
        letters = [("a", "a"), ("a", "b")]
        truth = exact(item, letters)
        ends = math.log1p(-float(truth.exp().sum()))
        actual = [is_first for _, is_first in item.loglikelihood(asked(letters))]
        assert actual == [float(own) == max(*truth.tolist(), ends) for own in truth]


def test_long_texts_are_scored_window_by_window(folders):
    """Every token once, each window after all that was before."""
    alone = EsscherLM(str(folders[0]))
    text = "abbabaabb"
    (actual,) = alone.loglikelihood_rolling(asked([(text,)]))
    parts = exact(alone, [("", text[:4]), (text[:4], text[4:8]), (text[:8], text[8:])])
    assert actual == pytest.approx(float(parts.sum()), abs=1e-5)
    assert alone.loglikelihood_rolling(asked([("",)])) == [0.0]


def test_answers_to_one_question_are_never_parted(folders):
    """So that which of them wins does not hang on the error of log Z; questions are, as many as a batch has."""
    model = EsscherLM(str(folders[0]), batch_size=2)
    questions = [[([1], [2])], [([1], [1])], [([1], [2, 2])], [([2], [1])], [], [([2], [1])], [([], [1])]]
    assert list(model._batches(questions)) == [range(3), range(3, 5), range(5, 7)]


def test_texts_are_generated_until_they_are_stopped(folders):
    model, alone = EsscherLM(*map(str, folders), num_candidates=50), EsscherLM(str(folders[0]))
    for settings in ({}, {"do_sample": True, "temperature": 0.7, "top_k": 2}):
        text = model.generate_until(asked([("a", {"until": ["b"], "max_gen_toks": 3, **settings})]))[0]
        assert "b" not in text and len(text) <= 3
    twice = [alone.generate_until(asked([("a", {"max_gen_toks": 4})]))[0] for _ in range(2)]
    assert twice[0] == twice[1]


@pytest.fixture
def task(tmp_path):
    """A perplexity and a choice among answers, in the harness's own words."""
    data = tmp_path / "texts.jsonl"
    columns = zip(TEXTS, ("a", "b"), ANSWERS, (0, 1), strict=True)
    rows = [{"text": text, "ask": ask, "answers": answers, "right": right} for text, ask, answers, right in columns]
    data.write_text("\n".join(map(json.dumps, rows)))
    common = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
    (tmp_path / "texts.yaml").write_text(
        f"task: local_texts\n{common}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{{{text}}}}'\n"
        "metric_list: [{metric: bits_per_byte}]\n"
    )
    (tmp_path / "choice.yaml").write_text(
        f"task: local_choice\n{common}output_type: multiple_choice\ndoc_to_text: '{{{{ask}}}}'\ntarget_delimiter: ''\n"
        "doc_to_choice: '{{answers}}'\ndoc_to_target: right\nmetric_list: [{metric: acc}]\n"
    )
    return tmp_path


def check(found, model):
    """Both tasks' numbers against enumeration."""
    truth = exact(model, [("", text) for text in TEXTS])
    bits = -float(truth.sum()) / math.log(2) / sum(map(len, TEXTS))
    assert found["local_texts"]["bits_per_byte,none"] == pytest.approx(bits, abs=0.03)
    best = [int(exact(model, [(ask, item) for item in answers]).argmax()) for ask, answers in zip("ab", ANSWERS, strict=True)]
    assert found["local_choice"]["acc,none"] == ((best[0] == 0) + (best[1] == 1)) / 2


@pytest.mark.parametrize("tilted", [True, slow(False)], ids=["tilted", "base"])
def test_local_tasks_run_offline(folders, task, tilted):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    base, energy = folders
    named = f"path={base}" + f",energy={energy},draws=2000" * tilted
    tasks = TaskManager(include_path=str(task), include_defaults=False)
    actual = simple_evaluate(
        "esscher", model_args=named, tasks=["local_texts", "local_choice"], task_manager=tasks, device="cpu"
    )
    check(actual["results"], EsscherLM(str(base), str(energy) if tilted else None))


@pytest.mark.slow
def test_the_command_is_that_of_the_harness(folders, task):
    """It reads the list of all tasks there are, which takes it half a minute."""
    base, energy = folders
    command = [sys.executable, "-m", "esscher.harness", "--model", "esscher", "--model_args",
               f"path={base},energy={energy},draws=2000", "--tasks", "local_texts,local_choice", "--include_path", str(task),
               "--output_path", str(task / "out")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=task, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (actual,) = (task / "out").rglob("results_*.json")
    check(json.loads(actual.read_text())["results"], EsscherLM(str(base), str(energy)))
    assert "log Z" in done.stderr


def test_an_unknown_setting_is_refused(folders):
    with pytest.raises(TypeError, match="drawz"):
        EsscherLM.create_from_arg_string(f"path={folders[0]},drawz=3")


def test_a_plain_model_has_the_numbers_that_the_harness_gives_it(tmp_path):
    """A folder of Hugging Face, read by the harness's own model and by ours, which opens every text as the base does."""
    from lm_eval.models.huggingface import HFLM

    tokenizer = character_tokenizer("abc ", unknown=False)
    model = tiny_model("gpt2", vocab_size=tokenizer.vocab_size, bos_token_id=None, eos_token_id=tokenizer.eos)
    save_base(tmp_path, causal_lm(model, max_length=8), tokenizer)
    pairs = [("ab", "ca"), ("ab", "b"), ("c ", "ab"), ("a", "bcabca")]
    harness = HFLM(str(tmp_path), device="cpu", dtype="float32", batch_size=2)
    opened = asked([(harness.tokenizer.eos_token + context, continuation) for context, continuation in pairs])
    theirs, ours = harness.loglikelihood(opened), EsscherLM(str(tmp_path)).loglikelihood(asked(pairs))
    assert [item for item, _ in ours] == pytest.approx([item for item, _ in theirs], abs=1e-4)
    assert [first for _, first in ours] == [first for _, first in theirs]
