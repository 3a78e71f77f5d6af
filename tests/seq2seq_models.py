"""Small random encoder-decoder models of `transformers` from several families, which several tests share."""

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM

from esscher.bases.seq2seq_lm import Seq2SeqLM, seq2seq_lm

TOKENS = {"vocab_size": 4, "eos_token_id": 0, "pad_token_id": 3, "decoder_start_token_id": 3, "forced_eos_token_id": None}
BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16,
}  # fmt: skip
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 4, "num_layers": 2}
LED = {name: value for name, value in BART.items() if name != "max_position_embeddings"}
LED |= {"attention_window": 4, "max_encoder_position_embeddings": 16, "max_decoder_position_embeddings": 16}
FAMILIES = {
    "t5": lambda **k: transformers.T5Config(**{**T5, **k}),  # scales its logits
    "t5 1.1": lambda **k: transformers.T5Config(**{**T5, **k}, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": lambda **k: transformers.BartConfig(**BART, **{**k, "decoder_start_token_id": 0}),
    "marian": lambda **k: transformers.MarianConfig(**BART, scale_embedding=True, **k),
    "pegasus": lambda **k: transformers.PegasusConfig(**BART, **k),
    "led": lambda **k: transformers.LEDConfig(**LED, **k),  # an encoder with a window, attention of its own
}
SOURCES = [[2, 0], [1], [2, 1, 1, 0], [1, 3, 0]]  # different lengths, the padding symbol in one
SHARING = ("t5", "t5 1.1", "bart", "marian", "pegasus")


def tiny_model(family: str, **tokens: object) -> torch.nn.Module:
    """A model with weights large enough that every token of source and target changes every distribution."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForSeq2SeqLM.from_config(FAMILIES[family](**{**TOKENS, **tokens})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.requires_grad:
                weight.mul_(1.5 if family.startswith("t5") else 8)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias += torch.linspace(-1, 1, model.final_logits_bias.shape[1])
    return model


def tiny_base(family: str, *, eos: int | None = 0, max_length: int = 3, **tokens: object) -> Seq2SeqLM:
    return seq2seq_lm(tiny_model(family, **tokens), max_length=max_length, eos=eos)
