"""XLNet (Yang et al., 2019) and Local-XLNet (thesis of Dai, 2020): what pretraining in random orders is worth for tasks, beside
other objectives on the same text with as many updates, and for a residual energy. `small` takes one core 150 minutes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.core.storage import write_file
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.docstrings import docstring_splits
from esscher.data.examples import TaskKind
from esscher.data.tokenizers import load_tokenizer, train_tokenizer
from esscher.energies.config import EnergyConfig
from esscher.hub import save_base
from esscher.hub.folder import CONFIG
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.config import LikelihoodConfig, MaskedLMConfig, PermutationLMConfig
from esscher.papers.sources import DATA, missing_message
from esscher.papers.study import Row, Study, StudyContext, means_over_seeds, run_with_seed, table_rows
from esscher.reports.document import Section, Table
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

PASSAGE_WORDS = 40
PRETRAINED_SHARE = 0.8  # of each book, from its start; the rest is held out of pretraining
PASSAGES_PER_REPLICATE = 10  # neighbouring passages
FEW, FEW_HELD_OUT = 1_000, 12  # docstrings of the smallest scale
PARTS = ("train", "validation", "test")
PERMUTED, DENOISING, CAUSAL, NO_PRETRAINING = "permutation LM", "denoising", "causal LM", "no pretraining"
LOCAL = "Local-XLNet"
REPEATED_METHODS = (PERMUTED, DENOISING, CAUSAL, NO_PRETRAINING)
ENERGY_STARTS = (PERMUTED, NO_PRETRAINING)
BOOKS, XQUAD = DATA / "gutenberg", DATA / "xquad/xquad.en.json"


@dataclass(frozen=True, kw_only=True)
class XLNetStudy(Study[TrainRun]):
    """A text, ways to pretrain one network on it, tasks, and an energy that starts from the network, on `energy_base`."""

    tasks: Mapping[str, FinetuneRun]
    repeated_over_seeds: tuple[str, ...] | None = REPEATED_METHODS
    energy_base: TrainRun | None = None
    tilt: TiltRun | None = None


def write_books(books: Path, out: Path, *, labelled: int, tested: int, vocabulary: int) -> None:
    """Write books and docstrings to pretrain on, their tokenizer, and passages labelled with their authors."""
    if exists_on_main_process(out / "authors-test.jsonl"):
        return
    docstrings = docstring_splits()
    texts = {file.stem: file.read_text(encoding="utf8", errors="replace") for file in sorted(books.glob("*.txt"))}
    train = [text[: round(PRETRAINED_SHARE * len(text))] for text in texts.values()]
    train.append("\n\n".join(docstrings.train.texts))
    _write_text(out, train, docstrings.validation.texts, docstrings.test.texts, vocabulary)
    starts = (0.0, PRETRAINED_SHARE, (1 + PRETRAINED_SHARE) / 2, 1.0)
    for part, count, start, end in zip(PARTS, (labelled, tested // 2, tested), starts, starts[1:], strict=False):
        rows = []
        for _, names in groupby(sorted(texts, key=_author), _author):
            passages = [passage for name in names for passage in _passages(name, texts[name], start, end)]
            chosen = min(count, len(passages))  # evenly spaced
            rows += [passages[number * len(passages) // chosen] for number in range(chosen)]
        _write_rows(out / f"authors-{part}.jsonl", rows)


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


def _author(book: str) -> str:
    return book.split("-")[0]


def _passages(book: str, text: str, start: float, end: float) -> list[dict[str, str]]:
    """The passages of a book between two shares of its length."""
    words = text[round(start * len(text)) : round(end * len(text))].split()[1:-1]
    pieces = [words[place : place + PASSAGE_WORDS] for place in range(0, len(words) - PASSAGE_WORDS + 1, PASSAGE_WORDS)]
    return [
        {"text": " ".join(piece), "label": _author(book), "place": f"{book} {start} {number // PASSAGES_PER_REPLICATE}"}
        for number, piece in enumerate(pieces)
    ]


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
    missing = [place for place in (BOOKS, XQUAD) if not place.exists()]
    if missing:
        return [], [missing_message(place) for place in missing]
    return [small_study(out)], []


def local_studies(scale: str, out: Path) -> tuple[list[XLNetStudy], list[str]]:
    """The permutation LM with full and with local attention, pretrained and fine-tuned alike."""
    studies, missing = xlnet_studies(scale, out)
    span = {"smoke": 8, "small": 16, "paper": 64}[scale]
    compared = []
    for study in studies:
        full = study.models[PERMUTED]
        local = replace(full, base=replace(full.base, mixers=("local",), spans=(span,)))
        methods = {PERMUTED: full, LOCAL: local}
        compared.append(replace(study, models=methods, repeated_over_seeds=tuple(methods), energy_base=None, tilt=None))
    return compared, missing


def small_study(out: Path) -> XLNetStudy:
    """Books and docstrings, 3 layers of width 96; authors of unseen passages, and answers within passages."""
    files = out / "data"
    write_books(BOOKS, files, labelled=40, tested=60, vocabulary=2_000)
    base = XLNetConfig(width=96, layers=3, heads=4, feedforward=384, dropout=0.1, memory=64)
    training = TrainingConfig(
        steps=900, batch_size=16, learning_rate=1e-3, schedule="linear", warmup_steps=100, evaluate_every=450, save_every=150,
        weight_decay=0.01,
    )  # fmt: skip
    tuning = FinetuneTraining(epochs=10, batch_size=16, learning_rate=5e-4, weight_decay=0.01, save_every=50)
    authors, held_out, test = (str(files / f"authors-{part}.jsonl") for part in PARTS)
    data = LabelledDataConfig(authors, validation=held_out, test=test, group="place")
    xquad = LabelledDataConfig(str(XQUAD), held_out=0.2)
    short = replace(tuning, epochs=3)
    tasks = {
        "authors": FinetuneRun("", out="", data=data, longest=80, layer_rate=0.8, training=tuning),
        "xquad": FinetuneRun("", out="", data=xquad, task="extract", longest=128, layer_rate=0.8, training=short),
    }
    run = _run(files, base, training)
    models = _pretraining(run, segment=64, window=128)
    energy_base, tilt = _energy(run, steps=600, energy_steps=200, draws=4_096)
    return XLNetStudy(name="books", models=models, tasks=tasks, energy_base=energy_base, tilt=tilt)


def _run(files: Path, base: XLNetConfig, training: TrainingConfig) -> TrainRun:
    """Training on the text and with the tokenizer of a folder."""
    train, validation, test = (str(files / f"{part}.txt") for part in PARTS)
    data = DataConfig(train, validation=validation, test=test, unit="document")
    return TrainRun("", data=data, tokenizer=TokenizerConfig(f"{files / 'tokenizer'}/"), base=base, training=training)


def _pretraining(
    run: TrainRun, *, segment: int, window: int, spans: Literal["words", "pieces"] = "words"
) -> dict[str, TrainRun]:
    """The permutation LM, other objectives on the same network, and the permutation LM without one of its parts."""
    length = LengthConfig(segment, stream=True, window=window, bidirectional=True)
    run = replace(run, length=length, objective=PermutationLMConfig(spans=spans))
    return {
        PERMUTED: run,
        DENOISING: replace(run, objective=MaskedLMConfig()),
        CAUSAL: replace(run, objective=LikelihoodConfig(), length=LengthConfig(window, stream=True)),
        NO_PRETRAINING: run,
        "K = 7": replace(run, objective=PermutationLMConfig(one_in=7.0)),
        "without memory": replace(run, base=replace(run.base, memory=0)),
        "without spans": replace(run, objective=PermutationLMConfig(spans="none")),
        "without both directions": replace(run, length=replace(length, bidirectional=False)),
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
    ("model", "RACE", "SQuAD 2.0 F1", "MNLI", "SST-2"),
    ("BERT", "64.3", "76.3", "84.3", "92.8"),
    ("denoising, Transformer-XL", "65.0", "79.6", "84.9", "92.6"),
    ("XLNet, K = 6", "66.7", "81.0", "85.6", "93.4"),
    ("without memory", "65.6", "80.2", "-", "-"),
    ("without spans", "66.0", "80.6", "-", "-"),
    ("without bidirectional data", "66.3", "80.7", "-", "-"),
)
LOCAL_XLNET_PAPER = [
    {"task": "SQuAD 2.0, F1", "full attention": "87.8", "local attention": "86.9"},
    {"task": "SST-2", "full attention": "94.9", "local attention": "94.8"},
]
MEANING = (
    "Measured on test data that were used neither for pretraining nor for fine-tuning, with 95 % intervals for data like them: "
    "neighbouring passages, or questions on one passage, are one replicate."
)
ENERGIES = "Nats per token of the base and of the tilted model, and what the energy saves, on the same continuations."


def run_xlnet(context: StudyContext) -> dict[str, Any]:
    """All pretraining objectives of the scale, with every seed, and the energies."""
    studies, missing = xlnet_studies(context.scale, context.out)
    rows, over, tasks = _task_rows(context, studies)
    energies = [
        make_energy_row(context, study, start, seed)
        for study in studies
        if study.tilt is not None
        for seed in range(context.seeds)
        for start in ENERGY_STARTS
    ]
    energies_over = means_over_seeds(energies, ["energy starts from"])
    energy_tables = [Table("Energies", energies, ENERGIES), Table("Energies, over seeds", energies_over)]
    about = "One network, pretrained on one text in several ways, then fine-tuned alike."
    tables = {"rows": rows, "over seeds": over, "energies": energies, "energies over seeds": energies_over, "paper": PAPER}
    return context.publish("XLNet: any order", about, [tasks, Section("As an energy", "", energy_tables)], tables, missing)


def run_local_xlnet(context: StudyContext) -> dict[str, Any]:
    """Full and local attention, with every seed."""
    studies, missing = local_studies(context.scale, context.out)
    rows, over, tasks = _task_rows(context, studies)
    about = "One size, one text, one objective; a position attends to everything, or to its chunk and both neighbours."
    tables = {"rows": rows, "over seeds": over, "paper": LOCAL_XLNET_PAPER}
    return context.publish("Local-XLNet", about, [tasks], tables, missing)


def _task_rows(context: StudyContext, studies: Sequence[XLNetStudy]) -> tuple[list[Row], list[Row], Section]:
    """The rows of all tasks, their means over seeds, and both as a section."""
    rows = [row for study in studies for row in context.rows(study, partial(pretrain_and_finetune, context, study))]
    over = means_over_seeds(rows, ["pretrained"])
    return rows, over, Section("Tasks", MEANING, [Table("Tasks", rows), Table("Tasks, over seeds", over)])


def pretrain_and_finetune(context: StudyContext, study: XLNetStudy, name: str, seed: int, run_dir: Path) -> Row:
    """The row of one pretraining objective: the metrics of every task on its test data."""
    start = pretrain(context, study, name, seed)
    row: Row = {"text": study.name, "pretrained": name, "seed": seed}
    for task, run in study.tasks.items():
        training = replace(run.training, seed=seed)
        result = finetune(replace(run, model=str(start), out=str(run_dir / task), training=training, resume=True))
        row |= {f"{task}, {metric}": value for metric, value in result.measured.items()}
    return row


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
