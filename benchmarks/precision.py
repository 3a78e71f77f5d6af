"""The price of bfloat16 and float16 weights: log-probabilities of draws, of their scores, and of the float32 model.

Own networks and models of `transformers` (4 layers, width 256, vocabulary 5,000), whose weights are made three times as large
as at the start, and whose logits are then scaled so that a token of a random text takes 3 nats, as under a trained model. 32
sequences of 64 and of 512 tokens are drawn with low-precision weights. `drawn - scored` compares the log-probability that a
draw carries from its steps with its score in one pass, with the same weights; `drawn - float32` with the score under the
weights before they were rounded. Both are nats a sequence: mean with standard error, standard deviation, largest size. `ESS`
is the effective share of the draws if they are weighted to the float32 model. Kernels round as those of this machine do.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks._device import device
from benchmarks._drawing import HEADS, INNER, LAYERS, WIDTH, gpt2
from benchmarks._timing import Row, Table
from esscher.bases.causal_lm import causal_lm
from esscher.bases.network import build_base
from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, concatenate, empty_prompts
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.samplers.ancestral import draw
from esscher.samplers.scoring import log_prob

REPEATS = 2  # seeds
VOCAB, LENGTHS, DRAWS, NATS = 5_000, (64, 512), 16, 3.0

DTYPES = (torch.bfloat16, torch.float16)


def llama(vocabulary: int, positions: int) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=positions, bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with SeededRng(0).fork_torch_rng():
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def transformer(length: int) -> Any:
    config = TransformerConfig(WIDTH, LAYERS, HEADS, INNER, max_positions=length, tied=False)
    return build_base(config, Space(VOCAB, length), rng=SeededRng(0)).eval()


def lstm(length: int) -> Any:
    return build_base(LstmConfig(WIDTH, 2, embedding=WIDTH), Space(VOCAB, length), rng=SeededRng(0)).eval()


MODELS: dict[str, Callable[[int], Any]] = {
    "Transformer": transformer,
    "LSTM": lstm,
    "GPT-2 of `transformers`": lambda length: causal_lm(gpt2(VOCAB, length + 1), max_length=length),
    "Llama of `transformers`": lambda length: causal_lm(llama(VOCAB, length + 1), max_length=length),
}


def head_weight(base: Any) -> nn.Parameter:
    return base.model.get_output_embeddings().weight if hasattr(base, "model") else base.network.head.weight


@torch.no_grad()
def trained_like(base: Any) -> Any:
    """Larger weights, and an output layer of its own that gives so many nats a token."""
    for weight in base.parameters():
        if weight.dim() > 1:
            weight.mul_(3)
    if hasattr(base, "model"):
        base.model.get_output_embeddings().weight = nn.Parameter(head_weight(base).clone())  # untied
    low, high = 1e-3, 1e3
    before, length = head_weight(base).clone(), min(48, base.space.max_length)
    tokens = torch.arange(4 * length).view(4, length) * 7919 % VOCAB
    x = Sequences(tokens, torch.zeros(4, dtype=torch.long), torch.full((4,), length)).to(before.device)
    for _ in range(12):
        scale = math.sqrt(low * high)
        head_weight(base).copy_(before * scale)
        log_probs = base.logits(x).log_softmax(-1)
        entropy = -float((log_probs.exp() * log_probs).sum(-1).mean())
        low, high = (low, scale) if entropy < NATS else (scale, high)
    return base


def row(name: str, dtype: torch.dtype, length: int, seeds: int) -> Row:
    exact = place(trained_like(MODELS[name](length)), device())
    base = place(copy.deepcopy(exact), device(), dtype)
    runs = [draw(base, empty_prompts(1), DRAWS, rng=SeededRng(seed)) for seed in range(seeds)]
    x, drawn = concatenate([run[0] for run in runs]), torch.cat([run[1][0] for run in runs])
    scored, float32 = log_prob(base, x), log_prob(exact, x)
    weight = (float32 - drawn).softmax(0)
    return {
        "model": name, "weights": str(dtype).removeprefix("torch."), "tokens": length,
        "nats a token": -float(drawn.mean()) / length,
        **_gaps("drawn - scored", drawn - scored), **_gaps("drawn - float32", drawn - float32),
        "ESS": float(1 / weight.square().sum()) / len(x),
    }  # fmt: skip


def _gaps(name: str, gaps: torch.Tensor) -> Row:
    error = float(gaps.std()) / math.sqrt(len(gaps))
    return {
        f"{name}, mean": f"{float(gaps.mean()):.3f} ± {error:.3f}",
        f"{name}, sd": float(gaps.std()),
        f"{name}, largest": float(gaps.abs().max()),
    }


def tables(repeats: int) -> list[Table]:
    cases = [(name, dtype, length) for dtype in DTYPES for name in MODELS for length in LENGTHS]
    return [Table(f"{repeats * DRAWS} sequences drawn with low-precision weights", [row(*case, repeats) for case in cases])]
