"""The usual gradients of a model on the text it learnt from: what dynamic evaluation scales its steps by.

For each weight the sum over batches of the squared gradient of the batch's mean loss, and the number of batches, which serve
both published rules: the root of the sum, and the root of the mean. They are collected once, and kept beside the model in one
file that says whose they are: the digest of the weights, the text, and how it was read. Any other model is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.storage import digest, module_tensors, read_tensors, write_tensors

PREFIX, BATCHES, CLAIM = "squares/", "batches", "claim"


@dataclass(frozen=True)
class GradientStatistics:
    """Sums of squared gradients by the name of the weight, over so many batches."""

    squares: Mapping[str, Float[Tensor, "..."]]
    batches: int

    def sizes(self, rule: str) -> dict[str, Float[Tensor, "..."]]:
        """The size of each weight's usual gradient: the root of the mean square, or with "mos" of the sum."""
        count = self.batches if rule == "original" else 1
        return {name: (total / count).sqrt() for name, total in self.squares.items()}


def collect_statistics(base: nn.Module, scores: Iterator[Tensor], *, batches: int | None = None) -> GradientStatistics:
    """Of the base at rest, from log-probabilities that it gives to one batch of tokens after another."""
    named = {name: weight for name, weight in base.named_parameters() if weight.requires_grad}
    squares = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in named.items()}
    count = 0
    for score in scores:
        slopes = torch.autograd.grad(-score.mean(), list(named.values()), allow_unused=True, materialize_grads=True)
        for total, slope in zip(squares.values(), slopes, strict=True):
            total.add_(slope.double().square_())
        count += 1
        if count == batches:
            break
    if count == 0:
        raise ValueError("There is no text to collect gradients from. Nothing was measured; give some.")
    return GradientStatistics({name: total.float() for name, total in squares.items()}, count)


def weights_digest(base: nn.Module) -> str:
    """One name for the weights of a base."""
    return digest(module_tensors(base))


def save_statistics(file: Path, statistics: GradientStatistics, claim: Mapping[str, Any]) -> None:
    """Put them into one file, at once, with what they are statistics of."""
    words = torch.frombuffer(bytearray(json.dumps(dict(claim)).encode()), dtype=torch.uint8)
    squares = {PREFIX + name: total for name, total in statistics.squares.items()}
    write_tensors(file, {**squares, BATCHES: torch.tensor(statistics.batches), CLAIM: words})


def load_statistics(file: Path, claim: Mapping[str, Any]) -> tuple[GradientStatistics, dict[str, Any]]:
    """What `save_statistics` wrote, and all that it claims; a claim with another value than here is refused."""
    found = read_tensors(file)
    if CLAIM not in found or BATCHES not in found:
        raise ValueError(f"{file} holds no statistics of gradients. Nothing was measured; move it away.")
    stated = json.loads(bytes(found[CLAIM].tolist()))
    for key, value in claim.items():
        if stated.get(key) != value:
            raise ValueError(
                f"The statistics in {file} were collected with {key} = {stated.get(key)!r}, and here {key} = {value!r}: they "
                f"do not belong together. Nothing was measured or changed; give the old value back, or remove the file: they "
                f"are then collected anew."
            )
    squares = {name.removeprefix(PREFIX): total for name, total in found.items() if name.startswith(PREFIX)}
    return GradientStatistics(squares, int(found[BATCHES])), stated
