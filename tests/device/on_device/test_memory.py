"""Memory of the device, counted: long texts are scored without all their logits, and drawing holds weights and caches."""

import gc

import pytest
import torch
import transformers
from torch import nn

from esscher.bases.causal_lm import causal_lm
from esscher.bases.network import build_base
from esscher.bases.seq2seq_lm import seq2seq_lm
from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.networks.transformer_config import TransformerConfig
from esscher.samplers.ancestral import draw
from esscher.samplers.scoring import log_prob

DEVICE = torch.device("cuda", 0)
MB = 2**20
LONG, VOCAB = 2048, 50_000
WIDE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": LONG + 1}
CAUSAL = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=LONG + 1, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        vocab_size=VOCAB,
        **WIDE,
        intermediate_size=16,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    ),
}


def causal_model(name: str):
    return causal_lm(transformers.AutoModelForCausalLM.from_config(CAUSAL[name]()).eval(), max_length=LONG)


def seq2seq_model():
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=4,
        d_ff=16,
        num_heads=2,
        num_layers=1,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    return seq2seq_lm(transformers.AutoModelForSeq2SeqLM.from_config(config).eval(), max_length=LONG)


def own_network():
    return build_base(TransformerConfig(16, 1, 2, 16, max_positions=LONG), Space(VOCAB, LONG), rng=SeededRng(0)).eval()


BASES = {**{name: lambda n=name: causal_model(n) for name in CAUSAL}, "t5": seq2seq_model, "own transformer": own_network}


def peak_of(compute) -> int:
    """The most bytes in use beside those before."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compute()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_scoring_a_long_text_takes_at_most_300_mb(name):
    base = place(BASES[name](), DEVICE, torch.bfloat16)
    tokens = (torch.arange(LONG + 1)[None] * 7919) % VOCAB
    x = Sequences(tokens, torch.ones(1, dtype=torch.long), torch.full((1,), LONG))
    assert peak_of(lambda: log_prob(base, x)) < 300 * MB


def weight_bytes(module: nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in {id(w): w for w in module.parameters()}.values())


def test_drawing_holds_the_weights_and_the_cache():
    """A model of the shape of 7 billion weights, 32 times narrower, with 8 layers, in bfloat16: 4 draws of 32 tokens after a
    prompt of 512."""
    layers, heads, width, prompt, draws, new = 8, 4, 128, 512, 4, 32
    config = transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=width,
        intermediate_size=344,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)

    def load_and_draw() -> None:
        base = place(causal_lm(model.eval(), max_length=new, eos=None), DEVICE)
        draw(base, prompts_of([[5] * prompt]), draws, rng=SeededRng(0))

    weights = weight_bytes(model)
    cache = 2 * layers * width * (prompt + 2 * draws * new) * 2  # keys and values, two bytes each; selecting rows copies theirs
    step = 4 * draws * config.vocab_size * 4  # logits, log-probabilities and what is drawn from them, in float32
    margin = 12 * MB  # activations of the prompt; the plain attention of the simulated device takes 4 x 512 x 512 scores
    assert peak_of(load_and_draw) < weights + cache + step + margin
    assert prompt * config.vocab_size * 2 > margin  # all logits of the prompt would not fit
    assert weights > margin  # nor would a copy of the weights
