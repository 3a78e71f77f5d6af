"""Both sides of drawing: `generate` of a GPT-2 of `transformers`, and `draw`, whose log-probabilities must be the scores."""

import torch
import transformers

from benchmarks._device import on_device
from benchmarks._timing import Run
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Base
from esscher.samplers.ancestral import draw

WIDTH, LAYERS, HEADS, INNER = 256, 4, 4, 1024


def gpt2(vocabulary: int, positions: int) -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=positions, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=None, pad_token_id=0,
        attn_implementation="sdpa",
    )  # fmt: skip
    with SeededRng(0).fork_torch_rng():
        return on_device(transformers.GPT2LMHeadModel(config).eval())


def generated(model: transformers.GPT2LMHeadModel, batch: int, tokens: int, batches: int = 1) -> Run:
    """`generate` from the model itself: no truncation, and exactly so many tokens after one begin symbol."""
    begin = on_device(torch.zeros(batch, 1, dtype=torch.long))

    @torch.no_grad()
    def run() -> None:
        for _ in range(batches):
            actual = model.generate(
                begin, attention_mask=torch.ones_like(begin), do_sample=True, top_k=0, use_cache=True,
                min_new_tokens=tokens, max_new_tokens=tokens,
            )  # fmt: skip
            if actual.shape != (batch, 1 + tokens):
                raise RuntimeError(f"generate gave {tuple(actual.shape)}, not {(batch, 1 + tokens)}: the comparison is void.")

    return run


def drawn(base: Base, prompts: Sequences, draws: int) -> Run:
    """`draw` with the log-probabilities of the draws, which all have as many tokens as there is room for."""
    rng = SeededRng(1)

    def run() -> None:
        x, log_prob = draw(base, prompts, draws, rng=rng)
        if int(x.lengths.min()) != base.space.max_length or log_prob.shape != (len(prompts), draws):
            raise RuntimeError(f"draw gave {tuple(x.tokens.shape)}: the comparison is void.")

    return run


@torch.no_grad()
def gap(base: Base, prompts: Sequences, draws: int) -> float:
    """The largest difference between the log-probability of a draw and its score, in nats."""
    x, log_prob = draw(base, prompts, draws, rng=SeededRng(2))
    return float((base.log_probs(on_device(x)).cpu().double().sum(-1) - log_prob[0]).abs().max())
