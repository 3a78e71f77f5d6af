"""Small random models of `transformers` from many families, which several tests share."""

from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from esscher.bases.causal_lm import CausalLM, causal_lm
from esscher.data.tokenizers import character_tokenizer
from esscher.hub import save_base

TOKENS = {"vocab_size": 3, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": None}
WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16}
LLAMA = {**WIDE, "intermediate_size": 24, "num_key_value_heads": 2}
FAMILIES = {
    "gpt2": lambda **k: transformers.GPT2Config(n_positions=16, n_embd=16, n_layer=2, n_head=2, **k),
    "llama": lambda **k: transformers.LlamaConfig(**LLAMA, **k),
    "gpt_neox": lambda **k: transformers.GPTNeoXConfig(**WIDE, intermediate_size=24, **k),
    "opt": lambda **k: transformers.OPTConfig(**WIDE, ffn_dim=24, word_embed_proj_dim=16, **k),
    "bloom": lambda **k: transformers.BloomConfig(hidden_size=16, n_layer=2, n_head=4, **k),  # positions from the mask
    "gemma2": lambda **k: transformers.Gemma2Config(**LLAMA, head_dim=8, sliding_window=3, **k),  # caps its logits
    "gpt_oss": lambda **k: transformers.GptOssConfig(  # attention with a sink, windows, experts
        **LLAMA, head_dim=8, sliding_window=3, num_local_experts=2, num_experts_per_tok=1, **k
    ),
}
SCALED = {"cohere": lambda **k: transformers.CohereConfig(**LLAMA, logit_scale=0.3, **k)}  # scales its logits
SHARING = ("gpt2", "llama", "gpt_neox", "opt")


def tiny_model(family: str, **tokens: object) -> torch.nn.Module:
    """A model with weights large enough that every token before changes every distribution."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config({**FAMILIES, **SCALED}[family](**{**TOKENS, **tokens})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    return model


def tiny_base(family: str, *, eos: int | None = 0, max_length: int = 4, **tokens: object) -> CausalLM:
    return causal_lm(tiny_model(family, **tokens), max_length=max_length, eos=eos)


def save_text_model(folder: Path, *, letters: str = "ab ", max_length: int = 4) -> Path:
    """A folder of Hugging Face with a tiny causal model of text: a token for each letter, then the end symbol."""
    size = len(letters) + 1
    base = tiny_base("gpt2", eos=size - 1, max_length=max_length, vocab_size=size, bos_token_id=0, eos_token_id=size - 1)
    return save_base(folder, base, character_tokenizer(letters, eos=size - 1, unknown=False))
