"""Log-probabilities of texts under the base, and their energies.

    model.score(["Return the name."]).log_base

A text is scored to its end symbol, if the model's sequences have one. With prompts it is a continuation: tokens of the prompt
do not count.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.core.space import Sequences, sequences
from esscher.data.sources import read_lines
from esscher.reports.report import Report
from esscher.samplers.scoring import log_prob, log_weight, to_device_of
from esscher.workflow.config.sample import ScoreConfig
from esscher.workflow.model import Model


@dataclass(frozen=True)
class ScoreResult:
    """For each text: its tokens (prompt not counted), log a(x) under the base, and the energy E(x), 0 for a base."""

    texts: list[str]
    prompts: list[str]
    tokens: list[int]
    log_base: list[float]
    energy: list[float]
    report: Report

    @property
    def log_unnormalized(self) -> list[float]:
        """log a(x) - E(x): the log-probability under the tilted model plus log Z of the prompt."""
        return [log_base - energy for log_base, energy in zip(self.log_base, self.energy, strict=True)]


def score_model(model: Model, settings: ScoreConfig) -> ScoreResult:
    """Score texts.

    Args:
        model: The model, tilted or not.
        settings: The texts, and the prompts that they continue.

    Returns:
        Log-probabilities under the base, energies, their sum, and the report.
    """
    texts = list(settings.texts) if settings.file is None else read_lines(Path(settings.file))
    prompts = list(settings.prompts) * (len(texts) if len(settings.prompts) == 1 else 1) or [""] * len(texts)
    if len(prompts) != len(texts):
        raise ValueError(
            f"There are {len(prompts)} prompts for {len(texts)} texts. Nothing was scored; give a prompt for each text, "
            "one for all, "
            f"or none."
        )
    x = _encode(model, texts, prompts)
    log_base, energy = log_prob(model.base, x).tolist(), (-log_weight(model.target, x)).tolist()
    rows: list[dict[str, Any]] = []
    for prompt, text, length, log_a, e in zip(prompts, texts, x.lengths.tolist(), log_base, energy, strict=True):
        row = {**({"prompt": prompt} if settings.prompts else {}), "text": text, "tokens": length, "log_base": log_a}
        rows.append({**row, "energy": e, "log_unnormalized": log_a - e} if model.is_tilted else row)
    facts = {"model": model.name, "energy": model.energy_name}
    return ScoreResult(texts, prompts, x.lengths.tolist(), log_base, energy, Report("esscher score", facts, {"scores": rows}))


def _encode(model: Model, texts: list[str], prompts: list[str]) -> Sequences:
    """Each text after its prompt, to its end symbol; a sequence of the largest length ends without one."""
    space, points = model.base.space, model.tokenizer.encode(texts)
    longest = max(range(len(points)), key=lambda row: len(points[row]))
    if len(points[longest]) > space.max_length:
        raise ValueError(
            f"The text {texts[longest][:40]!r} has {len(points[longest]):,} tokens, and sequences of {model.name} at most "
            f"{space.max_length:,}. Nothing was scored; load the model with a larger max_length, or leave longer texts out."
        )
    end = [] if space.eos is None else [space.eos]
    ended = [[*tokens, *end][: space.max_length] for tokens in points]
    return to_device_of(model.base, sequences(ended, model.encode_prompts(prompts)))
