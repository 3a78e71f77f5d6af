"""Studies, rows and report sections of recipes that train bases on one long text and measure how well they predict its rest.
The run folder keeps the log-probability of every test token, so that models are compared token by token."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from esscher.bases.network import NetworkBase, with_attention_span
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.storage import read_tensors, write_tensors
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.text import TextStream
from esscher.estimators.intervals import ratio_of_sums
from esscher.estimators.long_context import stream_log_probs
from esscher.hub import load_base
from esscher.networks.registry import NetworkConfig
from esscher.papers.study import Row, Rows, Study, StudyContext, count_parameters, means_over_seeds, run_with_seed
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import interval_panels, intervals, save_figure
from esscher.training.config import DynamicConfig, TrainingConfig
from esscher.training.dynamic_evaluation import score_dynamic, stream_scorer, with_progress
from esscher.workflow.config.train import TrainRun
from esscher.workflow.dynamic_evaluation import gradient_statistics_for
from esscher.workflow.measure import stream_columns
from esscher.workflow.model import load
from esscher.workflow.processors import StreamSplits
from esscher.workflow.train import train_base

SCORES = "scores.safetensors"
MEANING = (
    "Bits of the test text, with 95 % intervals for text like it (blocks of neighbouring tokens are the replicates). `saved` "
    "is compared token by token with the baseline of the same seed, so its interval is far narrower than that of the bits."
)


@dataclass(frozen=True)
class EvaluationMode:
    """How the test text is read: how far back attention looks (None: as in training), which distances are clamped, and whether
    the weights adapt to what was read (dynamic evaluation)."""

    attention_span: int | None = None
    clamp: int | None = None
    dynamic: DynamicConfig | None = None

    @property
    def name(self) -> str:
        """In words, for a table."""
        if self.dynamic is not None:
            return f"learning from it ({self.dynamic.rule})"
        clamped = "" if self.clamp is None else f", distances over {self.clamp:,} alike"
        return "as in training" if self.attention_span is None else f"{self.attention_span:,} back{clamped}"


@dataclass(frozen=True, kw_only=True)
class StreamStudy(Study[TrainRun]):
    """One long text and models that learn it in order; all are compared with the model `baseline`. The `start` of a run is the
    name of another model of the study, whose weights it starts from."""

    baseline: str
    unit: str = "token"  # bits are per byte, character, word or token
    evaluation_modes: Mapping[str, Sequence[EvaluationMode]] = field(default_factory=dict)  # beside "as in training"
    test_limit: int | None = None  # tokens of the test text, from its start; None is all


def stream_run(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    base: NetworkConfig,
    training: TrainingConfig,
    *,
    segment: int,
    segments: Literal["fixed", "random"] = "fixed",
) -> TrainRun:
    """A base that learns one long text in order, in segments of `segment` tokens, or of random lengths about it."""
    length = LengthConfig(segment, stream=True, segments=segments)
    return TrainRun("", data=data, tokenizer=tokenizer, length=length, base=base, training=training)


def stream_rows(context: StudyContext, studies: Sequence[StreamStudy]) -> list[Row]:
    """All rows of all studies, with the bits that each saves against the baseline of its study."""
    return [row for *_, of_model in rows_by_model(context, studies) for row in of_model]


def rows_by_model(context: StudyContext, studies: Sequence[StreamStudy]) -> Iterator[tuple[StreamStudy, str, int, list[Row]]]:
    """Study, model, seed and rows of every model, one after the other, so that a recipe can keep what is made so far."""
    for study in studies:
        for model, seed in context.names(study):
            made = context.row(study.name, model, seed, partial(train_and_measure, context, study, model, seed))
            yield study, model, seed, with_savings(context, study, made["rows"])


def train_and_measure(context: StudyContext, study: StreamStudy, model: str, seed: int, run_dir: Path) -> dict[str, list[Row]]:
    """Train a model; the "rows" of all modes to evaluate it in. The scores of test tokens stay in the run folder."""
    result = train_base(run_for_seed(context, study, model, seed))
    assert isinstance(result.data, StreamSplits)
    whole, end = result.data.test, study.test_limit
    test = TextStream(whole.tokens[:end], whole.words[:end], whole.characters[:end], whole.bytes[:end])
    modes = (EvaluationMode(), *study.evaluation_modes.get(model, ()))
    scores, size = {mode.name: _scores(run_dir, mode, test) for mode in modes}, test.units()[study.unit].double()
    write_tensors(run_dir / SCORES, {**scores, study.unit: size})
    parameters, steps = count_parameters(result.base), result.record.steps
    rows = [
        {"text": study.name, "model": model, "evaluated": name, "seed": seed, "parameters": parameters, "steps": steps,
         "bits": _bits(score, size, study.unit)}
        for name, score in scores.items()
    ]  # fmt: skip
    return {"rows": rows}


def run_for_seed(context: StudyContext, study: StreamStudy, model: str, seed: int) -> TrainRun:
    """The training run of a model with a seed in its folder."""
    run = study.models[model]
    seeded = run_with_seed(run, context.run_dir(study.name, model, seed), seed)
    return seeded if run.start is None else replace(seeded, start=str(context.run_dir(study.name, run.start, seed)))


def _scores(run_dir: Path, mode: EvaluationMode, test: TextStream) -> Tensor:
    """log a of every test token under the model of a folder, in single precision."""
    if mode.dynamic is not None:
        model, say = load(run_dir), current_progress().say
        statistics_of, _ = gradient_statistics_for(model, mode.dynamic)
        reader = with_progress(stream_scorer(test.tokens[None], mode.dynamic.segment), "learning", len(test), say)
        return torch.cat(score_dynamic(model.base, reader, mode.dynamic, statistics_of)).float()
    base, _ = load_base(run_dir)
    assert isinstance(base, NetworkBase)
    if mode != EvaluationMode():
        base = with_attention_span(base, attention_span=mode.attention_span, clamp_len=mode.clamp)
    return stream_log_probs(base, test.tokens, streams=stream_columns(len(test)), segment=base.space.max_length).float()


def _bits(log_prob: Tensor, size: Tensor, unit: str, how: str = "") -> Estimate:
    """Bits per unit, with blocks of neighbouring tokens as replicates."""
    nats = -log_prob.double()
    return ratio_of_sums(nats / math.log(2), size, confidence=0.95, counted=f"tokens{how}", unit=f"bits per {unit}")


def with_savings(context: StudyContext, study: StreamStudy, rows: Rows) -> list[Row]:
    """Rows with the bits that each saves against the baseline of the same seed, token by token."""
    plain, compared = EvaluationMode().name, []
    for row in rows:
        baseline = read_tensors(context.run_dir(study.name, study.baseline, row["seed"]) / SCORES)
        scores = read_tensors(context.run_dir(study.name, row["model"], row["seed"]) / SCORES)
        difference, how = scores[row["evaluated"]] - baseline[plain], f", one by one less than {study.baseline}"
        is_baseline = row["model"] == study.baseline and row["evaluated"] == plain
        saved = None if is_baseline else _bits(-difference, scores[study.unit], study.unit, how)
        compared.append({**row, "saved": saved})
    return compared


def over_seeds(rows: Rows) -> list[Row]:
    """The mean over seeds of each model and evaluation mode."""
    return means_over_seeds(rows, ("text", "model", "evaluated"), ("bits", "saved"))


def with_perplexity(rows: Rows) -> list[Row]:
    """Rows in bits per token also with their perplexity."""
    return [
        {**row, "perplexity": row["bits"].map(lambda bits: 2**bits, unit="per token")}
        if row["bits"].unit == "bits per token"
        else dict(row)
        for row in rows
    ]


def save_over_seeds(rows: Rows, file: Path) -> None:
    """A figure of the bits of every model and evaluation mode over seeds, a panel for each text, if there are such rows."""
    panels, plain = {}, f", {EvaluationMode().name}"
    for text in dict.fromkeys(row["text"] for row in rows):
        of_text = [row for row in rows if row["text"] == text]
        named = {f"{row['model']}, {row['evaluated']}".removesuffix(plain): row["bits"] for row in of_text}
        panels[text] = named, of_text[0]["bits"].unit, None, ""
    if panels:
        save_figure(interval_panels(panels), file)


def stream_sections(rows: Rows) -> list[Section]:
    """A section for each text: its rows, their means, and a picture of what each model saves."""
    sections = []
    for text in dict.fromkeys(row["text"] for row in rows):
        of_text = [row for row in rows if row["text"] == text]
        saved = {f"{row['model']}, {row['evaluated']}, seed {row['seed']}": row["saved"] for row in of_text if row["saved"]}
        parts: list[Any] = [Table("Over seeds", over_seeds(of_text)), Table("Rows", of_text)]
        if saved:
            label = f"saved, {of_text[0]['bits'].unit}"
            parts.append(Picture(intervals(saved, label=label, truth=0.0, truth_label="no difference"), ""))
        sections.append(Section(text, MEANING, parts))
    return sections
