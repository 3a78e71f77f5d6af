"""Comparing the ranks of several models' next-token distributions on one text: the whole of `esscher analyse rank`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.cut import Cut
from esscher.estimators.context_length import spread_places
from esscher.estimators.rank import Spread, next_log_probs, spread_of
from esscher.heads.mixture import MixtureHead
from esscher.hub import SavedBase
from esscher.settings.rank import RankSettings
from esscher.space import prompts_of
from esscher.verbs.models import load_model, room_of
from esscher.verbs.run_folder import manner_of
from esscher.verbs.training_streams import read_stream_of


@dataclass(frozen=True)
class RankOf:
    """What was found of one model, and the highest rank that a plain softmax over its hidden vectors can have, if known."""

    spread: Spread
    softmax_bound: int | None


def compare_ranks(
    folders: Sequence[str | Path],
    data: str,
    settings: RankSettings,
    *,
    level: float = 0.95,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, RankOf]:
    """The models of these folders, each with its own tokens of the text; they compute in float64."""
    found = {}
    for folder in folders:
        model = load_model(folder, cut=Cut(max_length=1))
        tokens = read_stream_of(data, model.tokenizer, *manner_of(folder)).tokens
        say(f"{folder}:")
        found[str(folder)] = rank_of(model.base, tokens, settings, level=level, say=say)
    return found


def rank_of(
    base: SavedBase,
    tokens: Int[Tensor, "N"],
    settings: RankSettings,
    *,
    level: float = 0.95,
    say: Callable[[str], None] = lambda text: None,
) -> RankOf:
    """One base, which computes in float64 from here on."""
    base = base.double()
    length = min(settings.length, room_of(base), len(tokens) - 2)
    places = spread_places(settings.contexts, len(tokens), max(0, length))
    say(f"{len(places):,} contexts of {length} tokens")
    return RankOf(spread_of(next_log_probs(base, tokens, places, length), level=level), softmax_bound(base))


@torch.no_grad()
def softmax_bound(base: SavedBase) -> int | None:
    """The width of the vectors that meet the output weights, one for the normaliser, and one more where there are biases."""
    if isinstance(base, NetworkBase):
        head = getattr(base.network, "head", None)
        biases = getattr(head, "bias", None) is not None
        if isinstance(head, MixtureHead):
            return head.latent.out_features // head.components + 1 + biases
        vectors = base.network.hidden(prompts_of([[0]]).to(next(base.parameters()).device))
        return vectors.shape[-1] + 1 + biases
    output = base.model.get_output_embeddings()
    if not isinstance(output, torch.nn.Linear):
        return None
    return output.in_features + 1 + (output.bias is not None)
