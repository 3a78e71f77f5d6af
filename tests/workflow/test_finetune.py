"""`esscher finetune` and `esscher predict`: every task from files to a folder that predicts; resumed to the bit; refused."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from cli_calls import call
from interrupted import Killed
from marks import slow_except
from transformers import BertConfig, BertModel, BertTokenizerFast

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.core.storage import digest, module_tensors
from esscher.data.examples import DEFAULT_COLUMNS, Example, make_examples, read_rows
from esscher.data.pair_encoding import PairEncoder
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import save_base
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.supervised import LabelLikelihood
from esscher.training.finetune_tasks import Extract
from esscher.workflow.config.finetune import FinetuneRun, FinetuneTraining, HeadConfig, LabelledDataConfig
from esscher.workflow.finetune import finetune, load_finetuned

TRAINING = FinetuneTraining(steps=2, batch_size=6, evaluate_every=1, save_every=1, warmup_steps=0, log_every=1)
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An XLNet that reads letters."""
    tokenizer = train_tokenizer("character", [LETTERS + " ?"])
    config = XLNetConfig(8, 2, 2, 16, dropout=0.1)
    base = build_base(config, Space(tokenizer.vocab_size, 32, eos=tokenizer.eos), rng=SeededRng(0))
    return str(save_base(tmp_path_factory.mktemp("finetune") / "xlnet", base, tokenizer))


def words(number: int) -> str:
    return "".join(LETTERS[item] for item in SeededRng(number).categorical(torch.zeros(1, 8), 6)[0].tolist())


def rows_of(task: str) -> list[dict]:
    texts = [words(number) for number in range(40)]
    if task in ("classify", "regress"):
        return [{"text": text, "label": str(number % 3)} for number, text in enumerate(texts)]
    if task == "choose":
        options = [[text[:2], text[2:4], "h"] for text in texts]
        return [
            {"article": text, "question": "a?", "options": some, "answer": "ABC"[number % 3]}
            for number, (text, some) in enumerate(zip(texts, options, strict=True))
        ]
    if task == "extract":
        predictions = [[] if number % 4 == 0 else [{"text": text[2:4], "answer_start": 2}] for number, text in enumerate(texts)]
        return [
            {"context": text * 3, "question": text[:2], "answers": item} for text, item in zip(texts, predictions, strict=True)
        ]
    return [
        {"query": text[:3], "document": other, "label": grade}
        for text in texts
        for other, grade in ((text, 2), (text[::-1], 0))
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    for task in ("classify", "regress"):
        with (folder / f"{task}.{'csv' if task == 'classify' else 'tsv'}").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"], delimiter="," if task == "classify" else "\t")
            writer.writeheader()
            writer.writerows(rows_of(task))
    for task in ("choose", "extract", "rank"):
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(task)))
    return folder


def run_of(model, files, out, task="classify", **changes) -> FinetuneRun:
    source = next(files.glob(f"{task}.*"))
    data = LabelledDataConfig(str(source), held_out=0.2)
    run = FinetuneRun(str(model), out=str(out), data=data, task=task, longest=16, training=TRAINING)
    return replace(run, **changes)


METRICS = {
    "classify": {"accuracy", "F1", "Matthews' correlation"},
    "regress": {"Pearson's correlation", "Spearman's correlation"},
    "choose": {"accuracy"},
    "extract": {"exact match", "F1", "answerability"},
    "rank": {"MRR", "nDCG@20"},
}


@pytest.mark.parametrize("task", slow_except(["classify", "extract", "rank"], METRICS))
def test_every_task_from_a_file_to_a_folder_that_predicts_the_same(model, files, tmp_path, task):
    actual = finetune(run_of(model, files, tmp_path, task))
    assert set(actual.measured) == METRICS[task] and actual.record.steps == 2
    assert all(value.low <= value.value <= value.high for value in actual.measured.values())
    again = load_finetuned(tmp_path)
    assert again.predict(actual.test) == actual.predictions and again.labelling == actual.model.labelling
    assert json.loads((tmp_path / "results.json").read_text())["task"] == task
    assert f"trained to {task}" in (tmp_path / "README.md").read_text()


def test_a_run_that_was_stopped_ends_as_one_that_was_not(model, files, tmp_path, monkeypatch):
    run = run_of(model, files, tmp_path / "whole", layer_rate=0.5)
    finetune(run)
    right, stopped = LabelLikelihood.__call__, replace(run, out=str(tmp_path / "stopped"))

    def killed(self, target, data, *, rng, step=0):
        if step == 1 and target.training:
            raise Killed
        return right(self, target, data, rng=rng, step=step)

    with monkeypatch.context() as patch:
        patch.setattr(LabelLikelihood, "__call__", killed)
        with pytest.raises(Killed):
            finetune(stopped)
    with pytest.raises(ValueError, match=r"layer_rate = 0.5, and is resumed with layer_rate = 1.0"):
        finetune(replace(stopped, layer_rate=1.0, resume=True))
    finetune(replace(stopped, resume=True))
    weights = [digest(module_tensors(load_finetuned(run.out).task_model)) for run in (run, stopped)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_task_that_can_be_learnt_is(model, tmp_path):
    """Whether a letter occurs; a network that does not see the text stays at a half."""
    texts = [words(number + 100) for number in range(110)]
    file = tmp_path / "letters.jsonl"
    file.write_text("".join(json.dumps({"text": text, "label": "c" if "c" in text else "-"}) + "\n" for text in texts))
    training = replace(TRAINING, steps=40, batch_size=16, learning_rate=2e-2, evaluate_every=20)
    data = LabelledDataConfig(str(file), held_out=0.2)
    actual = finetune(FinetuneRun(model, out=str(tmp_path / "run"), data=data, training=training, longest=16))
    assert actual.measured["accuracy"].low > 0.6


def test_frozen_layers_stay_and_lower_ones_move_less(model, files, tmp_path):
    from esscher.hub import load_base

    before = module_tensors(load_base(model)[0].network)
    frozen = finetune(run_of(model, files, tmp_path / "frozen", head=HeadConfig(frozen=True))).model.task_model
    assert digest(module_tensors(frozen.encoder.network)) == digest(before)
    training = replace(TRAINING, steps=1, learning_rate=1e-3, keep_best=False, evaluate_every=None)
    moved = finetune(run_of(model, files, tmp_path / "moved", layer_rate=0.1, training=training)).model.task_model
    after = module_tensors(moved.encoder.network)
    step = {name: float((after[name] - before[name]).abs().max()) for name in before}
    for prefix, share in (("blocks.1.", 1.0), ("blocks.0.", 0.1), ("embedding.", 0.01)):
        longest = max(size for name, size in step.items() if name.startswith(prefix))
        assert longest == pytest.approx(1e-3 * share, rel=0.1)


def test_other_networks_and_encoders_of_hugging_face(files, tmp_path):
    tokenizer = train_tokenizer("character", [LETTERS + " ?"])
    gru = build_base(GruConfig(8, 1), Space(tokenizer.vocab_size, 32, eos=tokenizer.eos), rng=SeededRng(0))
    save_base(tmp_path / "gru", gru, tokenizer)
    actual = finetune(run_of(tmp_path / "gru", files, tmp_path / "a", "extract"))
    assert not actual.model.task_model.encoder.bidirectional
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{item}" for item in LETTERS)]
    (tmp_path / "vocab.txt").write_text("\n".join(symbols))
    cut = BertTokenizerFast(vocab={item: number for number, item in enumerate(symbols)})
    with SeededRng(0).fork_torch_rng():
        bert = BertModel(
            BertConfig(
                vocab_size=len(symbols),
                hidden_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=40,
            )
        )
    for part in (bert, cut):
        part.save_pretrained(tmp_path / "bert")
    for task in ("classify", "extract"):
        actual = finetune(run_of(tmp_path / "bert", files, tmp_path / task, task, encoder=True))
        assert actual.model.task_model.config.pooling == "first"
        again = load_finetuned(tmp_path / task)
        assert again.predict(actual.test) == actual.predictions


def test_the_command_line(model, files, tmp_path, capsys):
    folder = str(tmp_path / "run")
    arguments = (
        "--data",
        str(files / "classify.csv"),
        "--data.held-out",
        "0.2",
        "--training.steps",
        "2",
        "--longest",
        "16",
    )
    code, out, err = call(capsys, "finetune", model, "--out", folder, *arguments, "--training.seed", "4", "--quiet", "--json")
    assert code == 0, err
    output = json.loads(out.splitlines()[-1])
    assert output["seed"] == 4 and {"value", "low", "high"} <= set(output["measured"]["accuracy"])
    code, out, _ = call(capsys, "predict", folder, "abc", "gh", "--json")
    assert code == 0 and [load["label"] in "012" for load in json.loads(out.splitlines()[-1])["predictions"]] == [True, True]
    predictions = tmp_path / "answers.jsonl"
    code, out, _ = call(capsys, "predict", folder, "--data", str(files / "classify.csv"), "--out", str(predictions), "--json")
    assert code == 0 and len(predictions.read_text().splitlines()) == 40 and "measured" in json.loads(out.splitlines()[-1])
    (tmp_path / "new.txt").write_text("abc\n\ngh\n")
    assert call(capsys, "predict", folder, "--data", str(tmp_path / "new.txt"))[0] == 0
    for given, message in (
        ((folder,), "Give texts, or a file"),
        ((model, "abc"), "which was not trained for a task"),
    ):
        code, _, err = call(capsys, "predict", *given)
        assert code == 1 and message in err


def test_windows_of_a_passage_find_every_answer_once(model):
    """Windows overlap by half; an answer is told by the place of its words, whatever the window."""
    tokenizer = train_tokenizer("character", [LETTERS + " ?"])
    layout, passage = PairEncoder(tokenizer, 12, 20, 21), "abcdefghabcdefgh"
    x, windows = layout.windows([(passage, "ab"), ("gh", "h")])
    assert x.start.tolist() == [7, 7, 7, 7, 2] and [window.first for window in windows] == [0, 3, 6, 9, 0]
    assert x.points()[0] == [20, *tokenizer.encode(["ab"])[0], 20, 21]
    assert [window.span(4, 3, 7) for window in windows[:4]] == [(4, 6), (1, 3), None, None]
    assert {window.text(passage, *actual) for window in windows[:4] if (actual := window.span(4, 3, 7))} == {"efg"}
    long = Example(((passage, "ab"),), ((4, "efg"),), "")
    assert Extract(3, True).labelled([long], layout).label.tolist() == [[4, 6], [1, 3], [-1, -1], [-1, -1]]
    assert Extract(2, True).labelled([long], layout).label.eq(-1).all()
    rows = layout.rows([("abcdef", "abcdefgh"), ("abcdefghabcdefgh",), ("a", "b")])
    assert rows.stop.tolist() == [12, 12, 5] and rows.start.tolist() == [5, 10, 1]


def test_rows_of_files_and_what_is_wrong_with_them(tmp_path):
    nested = {"data": [{"title": "t", "paragraphs": [{"context": "ab cd", "qas": [{"question": "q", "answers": [
        {"text": "cd", "answer_start": 3}]}]}]}]}  # fmt: skip
    file = tmp_path / "squad.json"
    file.write_text(json.dumps(nested))
    (actual,) = make_examples("extract", read_rows(str(file)), DEFAULT_COLUMNS["extract"], "x")
    assert actual.label == ((3, "cd"),) and actual.inputs == (("ab cd", "q"),)
    for content, name, task, message in (
        ({"data": [{}]}, "a.json", "extract", "not in the form of SQuAD"),
        (None, "a.txt", "classify", "no columns by its extension"),
        ([{"txt": "a"}], "a.jsonl", "classify", "has no 'text'; its columns are txt"),
        ([{"text": "a", "label": "x"}], "b.jsonl", "regress", "is no number"),
        (
            [{"article": "a", "question": "b", "options": ["x", "y"], "answer": "E"}],
            "c.jsonl",
            "choose",
            "none of its 2 choices",
        ),
        (
            [{"context": "a", "question": "b", "answers": {"text": ["x"], "answer_start": [0]}}],
            "d.jsonl",
            "extract",
            "stand at place",
        ),
    ):
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) for row in content) if isinstance(content, list) else json.dumps(content))
        with pytest.raises(ValueError, match=message):
            make_examples(task, read_rows(str(file)), DEFAULT_COLUMNS[task], str(file))


def test_what_does_not_fit_is_refused(model, files, tmp_path):
    with pytest.raises(ValueError, match="layer_rate lies in"):
        run_of(model, files, tmp_path, layer_rate=0.0)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps({"text": text, "label": "a"}) + "\n" for text in ("ab", "cd")))
    with pytest.raises(ValueError, match="too few to hold out"):
        finetune(FinetuneRun(model, out=str(tmp_path / "x"), data=LabelledDataConfig(str(few))))
    same = LabelledDataConfig(str(few), validation=str(few), test=str(few))
    with pytest.raises(ValueError, match="have the label 'a'"):
        finetune(FinetuneRun(model, out=str(tmp_path / "x"), data=same))
    with pytest.raises(ValueError, match=r"has no 'lable' in 2 of 2 examples"):
        finetune(FinetuneRun(model, out=str(tmp_path / "x"), data=replace(same, label="lable")))
