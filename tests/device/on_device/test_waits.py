"""How often a step waits for the device, and how many kernels it launches; draws from a seed are those of the CPU."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from device.simulated_cuda import count_operations
from esscher.bases.causal_lm import causal_lm
from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.networks.recurrent_config import AwdLstmConfig, EnasConfig, GruConfig, LstmConfig, TrellisNetConfig
from esscher.networks.transformer_config import TransformerConfig, TransformerXLConfig
from esscher.samplers.ancestral import draw
from esscher.samplers.particles import Particles

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.simulated_cuda, "counts"), reason="only the simulated device counts")
VOCAB, LENGTH, LAYERS = 300, 48, 4
PROMPTS = prompts_of([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]] * 4)
ATTENTION = {"width": 16, "layers": LAYERS, "heads": 2, "feedforward": 32}
TOKENS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0}


def own(config):
    return lambda: build_base(config, Space(VOCAB, LENGTH, eos=0), rng=SeededRng(0)).eval()


def gpt2():
    config = GPT2Config(n_positions=64, n_embd=16, n_layer=LAYERS, n_head=2, **TOKENS)
    return causal_lm(_seeded(GPT2LMHeadModel, config), max_length=LENGTH)


def llama():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_key_value_heads=1, max_position_embeddings=64, **TOKENS)
    return causal_lm(_seeded(LlamaForCausalLM, config), max_length=LENGTH)


def _seeded(model, config):
    torch.manual_seed(0)
    return model(config).eval()


# waits a token, and operators a token: measured, and a tenth more
BASES = {
    "transformer": (own(TransformerConfig(max_positions=64, **ATTENTION)), 0.6, 14 * LAYERS + 12),
    "transformer-xl": (own(TransformerXLConfig(**ATTENTION)), 0.6, 13 * LAYERS + 18),
    "lstm": (own(LstmConfig(width=16)), 0.6, 37),
    "gru": (own(GruConfig(width=16)), 0.6, 37),
    "awd-lstm": (own(AwdLstmConfig(width=16, inner=20)), 0.6, 50),
    "enas": (own(EnasConfig(width=16)), 0.6, 65),
    "trellisnet": (own(TrellisNetConfig(width=16, layers=3, inner=16)), 0.6, 65),
    "gpt2": (gpt2, 1.1, 13 * LAYERS + 24),
    "llama": (llama, 1.1, 28 * LAYERS + 24),
}


def per_token(counted, points):
    return sum(counted.values()) / max(len(point) for point in points)


@pytest.mark.parametrize("name", BASES)
def test_a_drawn_token_hardly_waits(name):
    build, waits, launches = BASES[name]
    expected = draw(build(), PROMPTS, 4, rng=SeededRng(2))
    base = build().to("cuda")
    draw(base, PROMPTS, 4, rng=SeededRng(1))
    with count_operations() as counts:
        x, log_base = draw(base, PROMPTS, 4, rng=SeededRng(2))
    assert x.points() == expected[0].points() and torch.allclose(log_base, expected[1], atol=1e-4)
    assert per_token(counts.waits, x.points()) <= waits, counts.waits
    assert per_token(counts.launches, x.points()) <= launches, counts.launches


@pytest.mark.parametrize("name", ["transformer", "lstm", "gpt2"])
def test_particles_wait_three_times_a_token(name):
    build, particles = BASES[name][0], Particles(twist=lambda x: (x.tokens == 7).sum(-1).float())

    def run(base, seed):
        return particles(Tilted(base, lambda x: -(x.tokens == 7).sum(-1).float()), PROMPTS, 4, rng=SeededRng(seed))

    expected, base = run(build(), 2), build().to("cuda")
    run(base, 1)
    with count_operations() as counts:
        actual = run(base, 2)
    assert actual.x.points() == expected.x.points() and torch.allclose(actual.log_weight, expected.log_weight, atol=1e-4)
    assert per_token(counts.waits, actual.x.points()) <= 3.0, counts.waits
