"""Kernel launches and host waits for each drawn token, counted on the simulated device; the figures of docs/guide/gpu.md.

    PYTHONPATH=.:tests python tests/device/count_launches.py

Widths are small, because a launch is one whatever its size: only the layers count. On a machine with a GPU use a profiler.
"""

import sys

import torch
import transformers

from device import simulated_cuda
from esscher.bases.causal_lm import CausalLM, causal_lm
from esscher.bases.network import NetworkBase, build_base
from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.networks.transformer_config import TransformerConfig
from esscher.samplers.ancestral import draw

SHORT, LONG, VOCAB, WIDTH = 16, 48, 200, 32
IDS = {"vocab_size": VOCAB, "eos_token_id": None, "bos_token_id": 0, "attn_implementation": "sdpa"}


def gpt2(tokens: int) -> CausalLM:
    config = transformers.GPT2Config(n_embd=WIDTH, n_layer=12, n_head=2, **IDS)
    return causal_lm(transformers.GPT2LMHeadModel(config).eval(), max_length=tokens)


def llama(tokens: int) -> CausalLM:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=32, num_attention_heads=2, **IDS
    )
    return causal_lm(transformers.LlamaForCausalLM(config).eval(), max_length=tokens)


def own(tokens: int) -> NetworkBase:
    return build_base(TransformerConfig(WIDTH, 12, 2, 64), Space(VOCAB, tokens), rng=SeededRng(0)).eval()


def launches_per_token(build, rows: int) -> tuple[float, float]:
    """Launches and waits of one more token: the difference of long and short draws, so that the prompt does not count."""
    counted = []
    for tokens in (SHORT, LONG):
        base, prompt = place(build(tokens), "cuda"), prompts_of([[1, 2, 3, 4]])
        draw(base, prompt, rows, rng=SeededRng(1))  # what is prepared once
        with simulated_cuda.count_operations() as counts:
            draw(base, prompt, rows, rng=SeededRng(1))
        counted.append((sum(counts.launches.values()), sum(counts.waits.values())))
    (few, few_waits), (many, many_waits) = counted
    return (many - few) / (LONG - SHORT), (many_waits - few_waits) / (LONG - SHORT)


if __name__ == "__main__":
    if torch.cuda.is_available():
        sys.exit("This machine has a GPU, where nothing is simulated. Nothing was counted; use torch.profiler.")
    simulated_cuda.start()
    for name, build in {"GPT-2, 12 layers": gpt2, "Llama, 32 layers": llama, "our Transformer, 12 layers": own}.items():
        for rows in (1, 32):
            launches, waits = launches_per_token(build, rows)
            print(f"{name}, {rows} rows: {launches:.0f} launches and {waits:.2f} waits a token", flush=True)
