"""XLNet (Yang et al., 2019) and Local-XLNet (thesis of Dai, 2020): what pretraining in random orders is worth for tasks, beside
other objectives on the same text with as many updates, and for a residual energy."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from esscher.bases.network import NetworkBase, build_base
from esscher.core.bounded_files import read_bytes
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.reading import read_json_lines
from esscher.core.space import Space
from esscher.core.storage import write_file
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.docstrings import docstring_splits
from esscher.data.examples import TaskKind
from esscher.data.tokenizers import load_tokenizer, train_tokenizer
from esscher.energies.config import EnergyConfig
from esscher.hub import load_base, save_base
from esscher.hub.folder import CONFIG
from esscher.hub.packaged_models import is_available
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.config import LikelihoodConfig, MaskedLMConfig, PermutationLMConfig
from esscher.papers.sources import DATA, missing_message
from esscher.papers.study import Row, Study, StudyContext, cached_json, means_over_seeds, run_with_seed, table_rows
from esscher.papers.xlnet.likelihood_choices import CHOICES, choice_accuracy, score_of
from esscher.papers.xlnet.order_tasks import MAKERS, TASKS, naive_bayes_accuracy, story_documents, word_documents
from esscher.papers.xlnet.span_scores import DENOISING, PERMUTED
from esscher.papers.xlnet.task_effects import BY_LIKELIHOOD, MINILM, NAIVE, PICTURE, effects, keep, levels
from esscher.papers.xlnet.task_effects import CAUSAL as CAUSAL
from esscher.papers.xlnet.task_effects import NO_PRETRAINING as NO_PRETRAINING
from esscher.papers.xlnet.text_spans import ABOUT_SPANS, span_rows
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import figure_from_file
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.workflow.config.finetune import FinetuneRun, FinetuneTraining, LabelledDataConfig
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.finetune import finetune
from esscher.workflow.model import load
from esscher.workflow.run_folder import RESULTS
from esscher.workflow.tilt import ContrastResult, tilt_model
from esscher.workflow.train import train_base

FEW, FEW_HELD_OUT = 1_000, 12  # docstrings of the smallest scale
PARTS = ("train", "validation", "test")
ALL_TOKENS, LOCAL = "causal LM, all tokens", "Local-XLNet"
REPEATED_METHODS = (PERMUTED, DENOISING, CAUSAL, NO_PRETRAINING)
ENERGY_STARTS = (PERMUTED, NO_PRETRAINING)
STORIES, LETTERS = DATA / "tinystories", DATA / "text8-10M/text8.10M.gz"
PARTS_AND_BUDGETS = "parts and budgets"
BUDGETS = (750, 1_500, 6_000)  # updates of the permutation LM, beside those of all rows
NAIVE_BAYES = "naive-bayes.json"
PREDICTED_ONE_IN = 6.0  # one token in so many is predicted, by every objective but `ALL_TOKENS`
Documents = Callable[[str], list[list[str]]]


@dataclass(frozen=True, kw_only=True)
class XLNetStudy(Study[TrainRun]):
    """A text, ways to pretrain one network on it, tasks, their controls (an `encoder` fine-tuned alike, and naive Bayes in
    `files`), and an energy that starts from the network, on `energy_base`."""

    tasks: Mapping[str, FinetuneRun]
    encoder: Mapping[str, FinetuneRun] = field(default_factory=dict)
    files: Path | None = None
    repeated_over_seeds: tuple[str, ...] | None = REPEATED_METHODS
    energy_base: TrainRun | None = None
    tilt: TiltRun | None = None


def write_text_and_tasks(
    out: Path, train: str, held_out: str, documents: Documents, *, labelled: int, tested: int, vocabulary: int
) -> None:
    """Write a text to pretrain on, held-out text to validate and test with, their tokenizer, and order-sensitive tasks made of
    the rest of the held-out text; `naive-bayes.json` has the control."""
    if exists_on_main_process(out / NAIVE_BAYES):
        return
    third = len(held_out) // 3
    _write_text(out, [train], [held_out[: third // 2]], [held_out[third // 2 : third]], vocabulary)
    pieces = documents(held_out[third:])
    sizes = dict(zip(PARTS, (labelled, tested // 2, tested), strict=True))
    accuracy = {}
    for task, make in MAKERS.items():
        rows = make(pieces, SeededRng(0, "tasks", task))
        needed = sum(sizes.values())
        if len(rows) < needed:
            raise ValueError(f"The task {task!r} needs {needed} documents and the text has {len(rows)}. Nothing was made.")
        parts, first = {}, 0
        for part, count in sizes.items():
            parts[part] = rows[first : first + count]
            _write_rows(out / f"{task}-{part}.jsonl", parts[part])
            first += count
        accuracy[f"{task}, accuracy"] = naive_bayes_accuracy(parts["train"], parts["test"])
    write_file(out / NAIVE_BAYES, json.dumps(accuracy, default=Estimate.to_dict).encode())


def write_docstrings(out: Path, *, labelled: int, vocabulary: int) -> None:
    """Write docstrings to pretrain on, their tokenizer, and two tasks made of them: word order and the seventh word."""
    if exists_on_main_process(out / "words.jsonl"):
        return
    parts = docstring_splits()
    train = ["\n\n".join(parts.train.texts[:FEW])]
    _write_text(out, train, parts.validation.texts[:FEW_HELD_OUT], parts.test.texts[:FEW_HELD_OUT], vocabulary)
    texts = [text.split()[:12] for text in parts.test.texts if len(text.split()) >= 12][:labelled]
    orders, answers = [], []
    for number, words in enumerate(texts):
        shuffled = number % 2 == 1
        order = [words[place] for place in SeededRng(number).permutation(len(words)).tolist()] if shuffled else words
        orders.append({"text": " ".join(order), "label": "mixed" if shuffled else "in order"})
        answer = {"text": words[6], "answer_start": len(" ".join(words[:6])) + 1}
        question = {"context": " ".join(words), "question": " ".join(words[4:6])}
        answers.append({**question, "answers": [answer] if number % 4 else []})
    _write_rows(out / "orders.jsonl", orders)
    _write_rows(out / "words.jsonl", answers)


def _write_text(out: Path, train: Sequence[str], validation: Sequence[str], test: Sequence[str], vocabulary: int) -> None:
    write_file(out / "train.txt", "\n\n".join(train).encode())
    for name, texts in (("validation", validation), ("test", test)):
        write_file(out / f"{name}.txt", "\n\n".join(texts)[:60_000].encode())
    train_tokenizer("bpe", train, vocab_size=vocabulary).save(out / "tokenizer")


def _write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_file(file, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def xlnet_studies(scale: str, out: Path) -> tuple[list[XLNetStudy], list[str]]:
    """The studies of a scale, and a message for each data set that was not found."""
    if scale == "smoke":
        return [_smoke(out)], []
    if scale == "paper":
        return [_published()], []
    makers = ((STORIES, stories_study), (LETTERS, letters_study), (STORIES, parts_study))
    studies = [make(out) for place, make in makers if place.exists()]
    return studies, [missing_message(place) for place, _ in makers[:2] if not place.exists()]


def local_studies(scale: str, out: Path) -> tuple[list[XLNetStudy], list[str]]:
    """The permutation LM with full and with local attention, pretrained and fine-tuned alike."""
    studies, missing = xlnet_studies(scale, out)
    span = {"smoke": 8, "small": 16, "paper": 64}[scale]
    compared = []
    for study in studies:
        if PERMUTED not in study.models:
            continue
        full = study.models[PERMUTED]
        local = replace(full, base=replace(full.base, mixers=("local",), spans=(span,)))
        methods = {PERMUTED: full, LOCAL: local}
        compared.append(replace(study, models=methods, repeated_over_seeds=tuple(methods), energy_base=None, tilt=None))
    return compared, missing


def stories_study(out: Path) -> XLNetStudy:
    """TinyStories: short, so that a small network learns much of it; also the energies and ablations."""
    files = out / "TinyStories"
    train, held_out = ((STORIES / f"tinystories.{part}.txt").read_text(encoding="utf8") for part in ("val", "test"))
    write_text_and_tasks(files, train, held_out, story_documents, labelled=400, tested=800, vocabulary=2_000)
    study = _small("TinyStories", files)
    energy_base, tilt = _energy(study.models[ALL_TOKENS], steps=600, energy_steps=200, draws=4_096)
    return replace(_four_ways(study), energy_base=energy_base, tilt=tilt)


def parts_study(out: Path) -> XLNetStudy:
    """The permutation LM on TinyStories without one of its parts, a causal LM that predicts all tokens, and the permutation LM
    with fewer and with more updates; one seed."""
    study = _small("TinyStories", out / "TinyStories")
    full = study.models[PERMUTED]
    budgets = {
        updates_name(steps): replace(full, training=replace(full.training, steps=steps, warmup_steps=steps // 15))
        for steps in BUDGETS
    }
    parts = {name: run for name, run in study.models.items() if name not in REPEATED_METHODS}
    return replace(
        study, name=f"TinyStories, {PARTS_AND_BUDGETS}", models={**budgets, **parts}, repeated_over_seeds=(), encoder={},
        files=None,
    )  # fmt: skip


def updates_name(steps: int) -> str:
    """The permutation LM after so many updates."""
    return f"{PERMUTED}, {steps:,} updates"


def _four_ways(study: XLNetStudy) -> XLNetStudy:
    return replace(study, models={name: study.models[name] for name in REPEATED_METHODS})


def letters_study(out: Path) -> XLNetStudy:
    """text8: words of an encyclopedia without any mark."""
    files = out / "text8"
    text = read_bytes(LETTERS).decode()
    held_out = round(0.8 * len(text))
    write_text_and_tasks(files, text[:held_out], text[held_out:], word_documents, labelled=400, tested=600, vocabulary=2_000)
    return _four_ways(_small("text8", files))


def _small(name: str, files: Path) -> XLNetStudy:
    """2 layers of width 128, pre-norm, 3,000 updates of 16 windows of 128 tokens; 400 labels a task."""
    base = XLNetConfig(width=128, layers=2, heads=4, feedforward=512, dropout=0.1, memory=64, norm="pre")
    training = TrainingConfig(
        steps=3_000, batch_size=16, learning_rate=4e-3, schedule="linear", warmup_steps=200, evaluate_every=500,
        save_every=500, weight_decay=0.01,
    )  # fmt: skip
    run = _run(files, base, training)
    models = _pretraining(run, segment=64, window=128)
    return XLNetStudy(name=name, models=models, tasks=_order_tasks(files), encoder=_minilm(files), files=files)


def _order_tasks(files: Path) -> dict[str, FinetuneRun]:
    """The tasks of a folder; one that chooses reads four texts an example."""
    tuning = FinetuneTraining(batch_size=16, learning_rate=5e-4, weight_decay=0.01, save_every=50)
    tasks = {}
    for task in TASKS:
        train, validation, test = (str(files / f"{task}-{part}.jsonl") for part in PARTS)
        data = LabelledDataConfig(train, validation=validation, test=test, group="document")
        kind: TaskKind = "classify" if task == "order" else "choose"
        training = replace(tuning, epochs=4 if kind == "classify" else 5)
        tasks[task] = FinetuneRun("", out="", data=data, task=kind, longest=128, layer_rate=0.8, training=training)
    return tasks


def _minilm(files: Path) -> dict[str, FinetuneRun]:
    """The tasks for MiniLM, a pretrained encoder, if it is installed."""
    if not is_available("minilm"):
        return {}
    tuning = FinetuneTraining(epochs=3, batch_size=16, learning_rate=5e-5, weight_decay=0.01)
    return {
        task: replace(run, model="minilm", encoder=True, layer_rate=1.0, training=tuning)
        for task, run in _order_tasks(files).items()
    }


def _run(files: Path, base: XLNetConfig, training: TrainingConfig) -> TrainRun:
    """Training on the text and with the tokenizer of a folder."""
    train, validation, test = (str(files / f"{part}.txt") for part in PARTS)
    data = DataConfig(train, validation=validation, test=test, unit="document")
    return TrainRun("", data=data, tokenizer=TokenizerConfig(f"{files / 'tokenizer'}/"), base=base, training=training)


def _pretraining(
    run: TrainRun, *, segment: int, window: int, spans: Literal["words", "pieces"] = "words"
) -> dict[str, TrainRun]:
    """The permutation LM, other objectives on the same network that predict as many tokens of the same text, a causal LM that
    predicts all of them, and the permutation LM without one of its parts."""
    length = LengthConfig(segment, stream=True, window=window, bidirectional=True)
    forwards = replace(length, bidirectional=False)
    run = replace(run, length=length, objective=PermutationLMConfig(PREDICTED_ONE_IN, spans))
    return {
        PERMUTED: run,
        DENOISING: replace(run, objective=MaskedLMConfig(1 / PREDICTED_ONE_IN)),
        CAUSAL: replace(run, objective=PermutationLMConfig(spans=spans, order="left-to-right"), length=forwards),
        NO_PRETRAINING: run,
        ALL_TOKENS: replace(run, objective=LikelihoodConfig(), length=LengthConfig(window, stream=True)),
        "K = 7": replace(run, objective=PermutationLMConfig(one_in=7.0)),
        "without memory": replace(run, base=replace(run.base, memory=0)),
        "without spans": replace(run, objective=PermutationLMConfig(spans="none")),
        "without both directions": replace(run, length=forwards),
    }


def _energy(run: TrainRun, *, steps: int, energy_steps: int, draws: int) -> tuple[TrainRun, TiltRun]:
    """An LSTM on chunks of text, and an energy that learns to tell its continuations from those of the text."""
    length, lstm = LengthConfig(40, chunks=True, prompt_tokens=20), LstmConfig(width=256, layers=1, embedding=128)
    training = TrainingConfig(steps=steps, batch_size=32, learning_rate=3e-3, schedule="linear", evaluate_every=steps // 2)
    base = replace(run, length=length, base=lstm, training=training)
    contrast = ContrastConfig(draws=draws, sequences=energy_steps * 32, held_out=128)
    tuning = ContrastTraining(steps=energy_steps, evaluate_every=max(1, energy_steps // 4), warmup_steps=energy_steps // 10)
    return base, TiltRun(EnergyConfig(pooling="mean"), contrast=contrast, training=tuning)


def _smoke(out: Path) -> XLNetStudy:
    """A tiny network on docstrings, which every machine has."""
    files = out / "data"
    write_docstrings(files, labelled=60, vocabulary=400)
    base = XLNetConfig(width=16, layers=1, heads=2, feedforward=32, memory=8)
    training = TrainingConfig(steps=4, batch_size=4, learning_rate=5e-3, evaluate_every=4)
    tuning = FinetuneTraining(steps=4, batch_size=8, evaluate_every=4)
    orders, words = (LabelledDataConfig(str(files / f"{name}.jsonl"), held_out=0.2) for name in ("orders", "words"))
    tasks = {
        "orders": FinetuneRun("", out="", data=orders, longest=32, training=tuning),
        "words": FinetuneRun("", out="", data=words, task="extract", longest=32, training=tuning),
    }
    run = _run(files, base, training)
    models = _pretraining(run, segment=8, window=20)
    energy_base, tilt = _energy(run, steps=4, energy_steps=4, draws=128)
    small = replace(energy_base, base=LstmConfig(width=16, layers=1), length=LengthConfig(16, chunks=True, prompt_tokens=8))
    return XLNetStudy(name="docstrings", models=models, tasks=tasks, energy_base=small, tilt=tilt)


def _published() -> XLNetStudy:
    """The ablation's size, 12 layers of width 768, on Wikipedia and books; RACE, SQuAD 2.0, MNLI and SST-2 by their names.
    Where the labels of a task's test data are not published, its validation data serve as both."""
    base = XLNetConfig(
        width=768, layers=12, heads=12, feedforward=3_072, dropout=0.1, attention_dropout=0.1, memory=384,
        activation="gelu-tanh",
    )  # fmt: skip
    training = TrainingConfig(
        steps=500_000, batch_size=256, optimizer="adamw", learning_rate=4e-4, schedule="linear", min_lr_ratio=0.001,
        warmup_steps=40_000, weight_decay=0.01, evaluate_every=10_000,
    )  # fmt: skip
    data = DataConfig("wikimedia/wikipedia:20231101.en", held_out=0.001)
    tuning = FinetuneTraining(epochs=3, batch_size=32, learning_rate=3e-5, weight_decay=0.01, warmup_steps=1_000)
    hub: dict[str, tuple[str, str, TaskKind, dict[str, Any]]] = {
        "RACE": ("ehovy/race:all", ":test", "choose", {}),
        "SQuAD 2.0": ("rajpurkar/squad_v2", "::validation", "extract", {}),
        "MNLI": ("nyu-mll/multi_nli", "::validation_matched", "classify", {"text": "premise", "second": "hypothesis"}),
        "SST-2": ("stanfordnlp/sst2", "::validation", "classify", {"text": "sentence"}),
    }
    tasks = {}
    for name, (source, split, task, columns) in hub.items():
        labelled = LabelledDataConfig(source, validation=source + split, test=source + split, **columns)
        tasks[name] = FinetuneRun("", out="", data=labelled, task=task, longest=512, layer_rate=0.75, training=tuning)
    run = TrainRun("", data=data, tokenizer=TokenizerConfig("bpe", 32_000), base=base, training=training)
    models = _pretraining(run, segment=256, window=512, spans="pieces")
    return XLNetStudy(name="Wikipedia", models=models, tasks=tasks)


PAPER = table_rows(
    ("model", "RACE", "SQuAD 2.0 F1", "SQuAD 2.0 EM", "MNLI m/mm", "SST-2"),
    ("BERT-Base", 64.3, 76.30, 73.66, "84.34/84.65", 92.78),
    ("denoising, Transformer-XL", 65.03, 79.56, 76.80, "84.88/84.45", 92.60),
    ("XLNet-Base, K = 7", 66.05, 81.33, 78.46, "85.84/85.43", 92.66),
    ("XLNet-Base, K = 6", 66.66, 80.98, 78.18, "85.63/85.12", 93.35),
    ("without memory", 65.55, 80.15, 77.27, "85.32/85.05", 92.78),
    ("without spans", 65.95, 80.61, 77.91, "85.49/85.02", 93.12),
    ("without bidirectional data", 66.34, 80.65, 77.87, "85.31/84.99", 92.66),
    ("with next-sentence prediction", 66.76, 79.83, 76.94, "85.32/85.09", 92.89),
)
LOCAL_XLNET_PAPER = [
    {"task": "SQuAD 2.0, F1", "full attention": "87.8", "local attention": "86.9"},
    {"task": "SST-2", "full attention": "94.9", "local attention": "94.8"},
    {"task": "RTE", "full attention": "81.2", "local attention": "80.5"},
    {"task": "MRPC", "full attention": "90.4", "local attention": "90.6"},
]
MEANING = (
    "Measured on test data that were used neither for pretraining nor for fine-tuning, with 95 % intervals for data like them: "
    "examples of one document are one replicate. One token in six is predicted, unless a row says all."
)
FIGURE = "Test accuracy by way to pretrain, over seeds; of controls with one seed, the interval is for other examples."
ENERGIES = "Nats per token of the base and of the tilted model, and what the energy saves, on the same continuations."


def run_xlnet(context: StudyContext) -> dict[str, Any]:
    """All pretraining objectives of the scale, with every seed, and the energies."""
    studies, missing = xlnet_studies(context.scale, context.out)
    rows, over, spans, tasks = _task_rows(context, studies)
    energies = [
        make_energy_row(context, study, start, seed)
        for study in studies
        if study.tilt is not None
        for seed in range(context.seeds)
        for start in ENERGY_STARTS
    ]
    energies_over = means_over_seeds(energies, ["energy starts from"])
    spans_over = means_over_seeds(spans, ["text", "tokens"])
    energy_tables = [Table("Energies", energies, ENERGIES), Table("Energies, over seeds", energies_over)]
    about = "One network, pretrained on one text in several ways, then fine-tuned alike."
    tables = {"rows": rows, "over seeds": over, "spans": spans, "spans over seeds": spans_over, "energies": energies}
    tables |= {"energies over seeds": energies_over, "paper": PAPER}
    span_section = Section("Spans of text", ABOUT_SPANS, [Table("Spans", spans), Table("Spans, over seeds", spans_over)])
    sections = [tasks, span_section, Section("As an energy", "", energy_tables)]
    return context.publish("XLNet: any order", about, sections, tables, missing)


def run_local_xlnet(context: StudyContext) -> dict[str, Any]:
    """Full and local attention, with every seed."""
    studies, missing = local_studies(context.scale, context.out)
    rows, over, _, tasks = _task_rows(context, studies)
    about = "One size, one text, one objective; a position attends to everything, or to its chunk and both neighbours."
    tables = {"rows": rows, "over seeds": over, "paper": LOCAL_XLNET_PAPER}
    return context.publish("Local-XLNet", about, [tasks], tables, missing)


def _task_rows(context: StudyContext, studies: Sequence[XLNetStudy]) -> tuple[list[Row], list[Row], list[Row], Section]:
    """The rows of all tasks, kept with their effects after each one; their means over seeds; spans of text by the networks of a
    study, as soon as all of them are there; and the section."""
    missing = sum(len(context.names(study)) + len(control_names(study)) for study in studies)
    rows: list[Row] = []
    spans: list[Row] = []
    for study in studies:
        ways = ((name, seed, partial(pretrain_and_finetune, context, study)) for name, seed in context.names(study))
        controls = ((name, 0, partial(make_control, study)) for name in control_names(study))
        for name, seed, make in (*ways, *controls):
            rows.append(context.row(study.name, name, seed, partial(make, name, seed)))
            missing -= 1
            keep(context, rows, spans, missing)
        spans += [row for seed in range(context.seeds) for row in span_rows(context, study, seed, pretrain)]
        keep(context, rows, spans, missing)
    over = means_over_seeds(rows, ["text", "pretrained"])
    figure = context.out / PICTURE
    pictures = [Picture(figure_from_file(figure), FIGURE)] if figure.exists() else []
    tables = [Table("Accuracies", levels(rows)), Table("Effects", effects(rows)), Table("Tasks", rows)]
    return rows, over, spans, Section("Tasks", MEANING, [*pictures, *tables, Table("Tasks, over seeds", over)])


def control_names(study: XLNetStudy) -> tuple[str, ...]:
    """The controls of a study; each has one seed."""
    return (*((NAIVE,) if study.files is not None else ()), *((MINILM,) if study.encoder else ()))


def make_control(study: XLNetStudy, name: str, seed: int, run_dir: Path) -> Row:
    """The row of the same tasks by naive Bayes, or by MiniLM."""
    about = {"text": study.name, "pretrained": name, "seed": seed}
    if name == MINILM:
        return _finetune_all(study.encoder, None, about, seed, run_dir)
    assert study.files is not None
    return {**about, **cached_json(study.files / NAIVE_BAYES, dict)}


def pretrain_and_finetune(context: StudyContext, study: XLNetStudy, name: str, seed: int, run_dir: Path) -> Row:
    """The row of one pretraining objective: the metrics of every task on its test data."""
    begin = time.process_time()
    start = pretrain(context, study, name, seed)
    row: Row = {"text": study.name, "pretrained": name, "seed": seed}
    row = _finetune_all(study.tasks, start, row, seed, run_dir)
    row |= by_likelihood(study, name, start)
    return {**row, "minutes of one core": round((time.process_time() - begin) / 60, 1)}  # of this run, if it was interrupted


def _finetune_all(tasks: Mapping[str, FinetuneRun], start: Path | None, about: Row, seed: int, run_dir: Path) -> Row:
    """The metrics of every task on its test data, from the weights in `start`, if they are not those of the run."""
    row = dict(about)
    for task, run in tasks.items():
        training, model = replace(run.training, seed=seed), run.model if start is None else str(start)
        result = finetune(replace(run, model=model, out=str(run_dir / task), training=training, resume=True))
        row |= {f"{task}, {metric}": value for metric, value in result.measured.items()}
    return row


def by_likelihood(study: XLNetStudy, name: str, start: Path) -> Row:
    """The accuracies of a pretrained network on the tasks with options, by its own likelihood and without labels."""
    if study.files is None:
        return {}
    (base, tokenizer), score, accuracy = load_base(start), score_of(study.models[name].objective), {}
    assert isinstance(base, NetworkBase) and tokenizer is not None
    for task in CHOICES:
        rows = read_json_lines(study.files / f"{task}-test.jsonl")
        accuracy[f"{task}{BY_LIKELIHOOD}, accuracy"] = choice_accuracy(base, tokenizer, rows, score)
    return accuracy


def pretrain(context: StudyContext, study: XLNetStudy, name: str, seed: int) -> Path:
    """The folder of the pretrained network; without pretraining, that of its initial weights."""
    run_dir = context.run_dir(study.name, name, seed) / "pretrained"
    run = run_with_seed(study.models[name], run_dir, seed)
    if name != NO_PRETRAINING:
        if not exists_on_main_process(run_dir / RESULTS):
            train_base(run)
    elif not exists_on_main_process(run_dir / CONFIG):
        tokenizer = load_tokenizer(run.tokenizer.kind)
        space = Space(tokenizer.vocab_size, run.length.tokens)
        save_base(run_dir, build_base(run.base, space, rng=SeededRng(seed).stream("base")), tokenizer)
    return run_dir


def make_energy_row(context: StudyContext, study: XLNetStudy, start: str, seed: int) -> Row:
    """The row of an energy that starts from a pretrained network, on the one base of the study."""
    energy_base, tilt, base = study.energy_base, study.tilt, context.out / study.name / "base"
    if tilt is None or energy_base is None:
        raise ValueError(f"The study {study.name!r} has no energies. Nothing was made.")

    def make(run_dir: Path) -> Row:
        if not exists_on_main_process(base / RESULTS):
            train_base(replace(energy_base, out=str(base), resume=True))
        pretrained, training = pretrain(context, study, start, seed), replace(tilt.training, seed=seed)
        run = replace(tilt, out=str(run_dir), start=str(pretrained), training=training, resume=True)
        result = tilt_model(load(base), run).details
        assert isinstance(result, ContrastResult)
        measured = result.measured
        assert measured.tilted is not None and measured.reduction is not None
        columns = {"base": measured.base, "tilted": measured.tilted, "saved": measured.reduction}
        row = {"text": study.name, "energy starts from": start, "seed": seed, "best step": result.record.best_step}
        row |= {name: value["token"] for name, value in columns.items()}
        return row if measured.log_z is None else {**row, "log Z": measured.log_z}

    return context.row(study.name, f"energy from {start}", seed, make)
