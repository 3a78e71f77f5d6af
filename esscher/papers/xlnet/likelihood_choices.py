"""Choices of order-sensitive tasks by a pretrained network's own likelihood: no labels, no fine-tuning.

Each option is read in its place, and the network chooses the one with the highest log-probability given the rest of the text:
of the whole option for a word that was left out, per token for a sentence, whose options differ in length. A network from left
to right scores the option and all that follows it. Letters: B rows, T tokens of a text, N tokens of an option.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.core.device import device_of
from esscher.core.estimate import Estimate
from esscher.data.tokenizers import Tokenizer
from esscher.metrics import labels
from esscher.networks.xlnet import FactorizationOrder
from esscher.objectives.config import MaskedLMConfig, PermutationLMConfig
from esscher.papers.xlnet.order_tasks import GAP, TaskRow
from esscher.papers.xlnet.span_scores import SpanScore, filled_spans, permuted_spans

CHOICES = ("next", "cloze")
BATCH_TOKENS = 2**14


@dataclass(frozen=True)
class OptionInText:
    """The tokens of a text with an option in its place, which begins at `first` and has `size` tokens."""

    tokens: Sequence[int]
    first: int
    size: int


def left_to_right(base: NetworkBase, tokens: Int[Tensor, "B T"], span: Int[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """The tokens of the span and all after it, each given those before it."""
    rank = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    targets = torch.arange(int(span.min()), tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
    log_probs = base.log_probs_in_order(tokens, FactorizationOrder(rank, targets), tokens.gather(1, targets)).double()
    return log_probs.masked_fill(targets < span[:, :1], 0.0).sum(1)


def score_of(objective: Any) -> SpanScore:
    """How a network that was trained by an objective scores a span."""
    if isinstance(objective, MaskedLMConfig):
        return filled_spans
    permuted = isinstance(objective, PermutationLMConfig) and objective.order != "left-to-right"
    return permuted_spans if permuted else left_to_right


def choice_accuracy(base: NetworkBase, tokenizer: Tokenizer, rows: Sequence[TaskRow], score: SpanScore) -> Estimate:
    """The share of rows whose right option has the highest score."""
    options = [options_in_text(row, tokenizer) for row in rows]
    scores = iter(option_scores(base, [option for of_row in options for option in of_row], score))
    right = []
    for row, of_row in zip(rows, options, strict=True):
        values = [next(scores) / (1 if GAP in row["article"].split() else option.size) for option in of_row]
        right.append(values.index(max(values)) == row["answer"])
    return labels.accuracy(right, [str(row["document"]) for row in rows])


@torch.no_grad()
def option_scores(base: NetworkBase, options: Sequence[OptionInText], score: SpanScore) -> list[float]:
    """The score of each option in its text; texts of one shape are read together."""
    base.eval()
    scores, device = [0.0] * len(options), device_of(base)
    for places in _batches(options):
        tokens = torch.tensor([options[place].tokens for place in places], device=device)
        first = torch.tensor([options[place].first for place in places], device=device)
        span = first[:, None] + torch.arange(options[places[0]].size, device=device)
        for place, value in zip(places, score(base, tokens, span).tolist(), strict=True):
            scores[place] = value
    return scores


def _batches(options: Sequence[OptionInText]) -> Iterator[list[int]]:
    """The numbers of options whose texts and spans have equally many tokens, as many as a batch holds."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, option in enumerate(options):
        groups[len(option.tokens), option.size].append(place)
    for (length, _), places in groups.items():
        size = max(1, BATCH_TOKENS // length)
        yield from (places[first : first + size] for first in range(0, len(places), size))


def options_in_text(row: TaskRow, tokenizer: Tokenizer) -> list[OptionInText]:
    """Each option in the gap of the article, or after the article where it has none."""
    words = row["article"].split(" ")
    place = words.index(GAP) if GAP in words else len(words)
    before, after = " ".join(words[:place]), "".join(f" {word}" for word in words[place + 1 :])
    texts = [before, after, *(f" {option}" if before else option for option in row["options"])]
    head, tail, *options = tokenizer.encode(texts)
    return [OptionInText([*head, *option, *tail], len(head), len(option)) for option in options]
