"""A long sample of a base with a memory: a prompt of held-out text, and what the base continues it with, segment by segment."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import Rng
from esscher.core.space import empty_prompts
from esscher.samplers.ancestral import draw


class StreamSample(NamedTuple):
    """The tokens that follow a prompt, and the log-probability of each given all before it."""

    tokens: Int[Tensor, "N"]
    log_probs: Float[Tensor, "N"]


@torch.no_grad()
def continue_stream(base: NetworkBase, prompt: Int[Tensor, "P"], length: int, *, rng: Rng) -> StreamSample:
    """Draw `length` tokens after a prompt of at least one token; the memory has the prompt, and then each drawn segment."""
    memory, segment, tokens, log_probs = base.init_memory(1), base.space.max_length, [], []
    for read in torch.split(prompt[None], segment, 1):
        _, memory = base.read(memory, read)
    for first in range(0, length, segment):
        size, segment_rng = min(segment, length - first), rng.stream("segment", first)
        drawn, _ = draw(WithMemory(base, memory), empty_prompts(1), 1, rng=segment_rng, max_new_tokens=size)
        scores, memory = base.read(memory, drawn.tokens)
        tokens.append(drawn.tokens[0])
        log_probs.append(scores[0])
    return StreamSample(torch.cat(tokens), torch.cat(log_probs))
