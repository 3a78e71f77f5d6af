"""What a tilted model chose from, as rows: the candidates of each prompt by their share of the weight, and what the pools say
of themselves.

Equal candidates are one row: its share is an estimate of p(x), `times` how often it was drawn, `chosen` how many draws it
became.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esscher.data.tokenizers import Tokenizer
from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.log_z import log_z
from esscher.estimators.reliability import reliability
from esscher.estimators.replicates import per_prompt
from esscher.samplers.pool import Chosen
from esscher.samplers.scores import log_weight
from esscher.target import Tilted


def sample_rows(prompts: Sequence[str], draws: Draws, target: Tilted, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """A row for each draw."""
    count = draws.log_weight.shape[1]
    columns = zip(
        tokenizer.decode(draws.x.points()),
        draws.log_base.view(-1).tolist(),
        (-log_weight(target, draws.x)).tolist(),
        draws.log_weight.view(-1).tolist(),
        strict=True,
    )
    return [
        {"prompt": prompts[row // count], "text": text, "log_base": log_base, "energy": energy, "log_weight": weight}
        for row, (text, log_base, energy, weight) in enumerate(columns)
    ]


@dataclass(frozen=True)
class Candidate:
    """A point that was drawn `times` times; its share of the weight, and how many draws it became."""

    point: tuple[int, ...]
    text: str
    log_base: float
    energy: float
    share: float
    times: int
    chosen: int


def candidate_rows(found: Sequence[Chosen], target: Tilted, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """For each prompt its different candidates, the largest share first."""
    every = candidates_of(found, target, tokenizer)
    return [[{name: value for name, value in vars(one).items() if name != "point"} for one in group] for group in every]


def candidates_of(found: Sequence[Chosen], target: Tilted, tokenizer: Tokenizer) -> list[list[Candidate]]:
    """The same with their points."""
    groups: dict[int, list[Candidate]] = {}
    for group in found:
        for place, drawn, pick in zip(group.prompt.tolist(), per_prompt(group.candidates), group.pick, strict=True):
            groups[place] = _of_one(drawn, pick, target, tokenizer)
    return [groups[place] for place in sorted(groups)]


def _of_one(drawn: Draws, pick: Tensor, target: Tilted, tokenizer: Tokenizer) -> list[Candidate]:
    share = torch.softmax(drawn.log_weight[0], -1).tolist()
    chosen = torch.bincount(pick, minlength=len(share)).tolist()
    # independent candidates are the base's own draws, whose weight is -E; others carry the history of their cloud
    weight = drawn.log_weight[0] if drawn.independent else log_weight(target, drawn.x)
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, point in enumerate(drawn.x.points()):
        rows.setdefault(tuple(point), []).append(row)
    texts = tokenizer.decode([list(point) for point in rows])
    found = [
        Candidate(
            point,
            text,
            float(drawn.log_base[0, same[0]]),
            -float(weight[same[0]]),
            sum(share[row] for row in same),
            len(same),
            sum(chosen[row] for row in same),
        )
        for (point, same), text in zip(rows.items(), texts, strict=True)
    ]
    return sorted(found, key=lambda one: -one.share)


def pool_rows(prompts: Sequence[str], found: Sequence[Chosen], *, level: float = 0.95) -> list[dict[str, Any]]:
    """For each prompt: how many candidates there were, how even their weights are, log Z, and whether to believe it."""
    rows: dict[int, dict[str, Any]] = {}
    for group in found:
        parts = zip(group.prompt.tolist(), per_prompt(group.candidates), group.enough.tolist(), strict=True)
        for place, drawn, enough in parts:
            (judged,) = reliability(drawn)
            rows[place] = {
                "prompt": prompts[place],
                "candidates": drawn.log_weight.shape[1],
                "effective": judged.effective,
                "largest_share": float(torch.softmax(drawn.log_weight[0], -1).max()),
                "enough": enough,
                "log_z": _log_z(drawn, level),
                "verdict": judged.verdict,
                "advice": judged.advice,
            }
    return [rows[place] for place in sorted(rows)]


def _log_z(drawn: Draws, level: float) -> Estimate | None:
    """None where one run has no interval: particles depend on each other, and one candidate has no spread."""
    return log_z(drawn, level=level) if drawn.independent and drawn.log_weight.shape[1] > 1 else None
