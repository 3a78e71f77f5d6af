"""Sequences a second of `draw` from a Hugging Face model against the model's own `generate`, and the price of a prompt.

One GPT-2 of `transformers` (4 layers, width 256, 4 heads, vocabulary 5,000) serves both sides: 512 sequences of 40 tokens
after one begin symbol, no end symbol, sampling without truncation; `generate` in batches of 32 and of 128, `draw` as it
chooses. `products alone` are the matrix products that 512 x 40 tokens take and nothing else: no way of drawing can be faster.
Then 64 continuations of 40 tokens, of one prompt of 120 tokens and of none: with the prompt's keys and values shared by all
rows, as `draw` does it, and on the cache of `transformers`, which copies them for every row. The gap is the largest between
the log-probability of a draw and its score. Where the time goes, and what was tried: docs/why/shared_prompt.md.
"""

import torch

from benchmarks._device import on_device
from benchmarks._drawing import INNER, LAYERS, WIDTH, drawn, gap, generated, gpt2
from benchmarks._timing import Row, Run, Table, spread, time_runs, versus
from esscher.bases.causal_lm import CausalLM, causal_lm
from esscher.core.space import empty_prompts, prompts_of

REPEATS = 3
VOCAB, TOKENS, DRAWS, PROMPT, CONTINUATIONS = 5_000, 40, 512, 120, 64
WANTED = {32: "at least 3", 128: "at least 1.5"}


def products() -> Run:
    """The products of all weights with every token, as many rows at once as there are draws."""
    shapes = LAYERS * [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH)] + [(WIDTH, VOCAB)]
    pairs = [on_device((torch.randn(DRAWS, inwards), torch.randn(inwards, outwards))) for inwards, outwards in shapes]

    def run() -> None:
        for _ in range(TOKENS):
            for rows, weight in pairs:
                rows @ weight

    return run


def against_generate(base: CausalLM, repeats: int) -> list[Row]:
    batches = {f"generate, {batch} at once": batch for batch in WANTED}
    runs = {name: generated(base.model, batch, TOKENS, DRAWS // batch) for name, batch in batches.items()}
    seconds = time_runs({**runs, "draw": drawn(base, empty_prompts(1), DRAWS), "products alone": products()}, repeats)
    amount, actual = dict.fromkeys(seconds, DRAWS), gap(base, empty_prompts(1), 64)
    rows = [
        {**versus(seconds, "draw", name, amount, "sequences/s"), "wanted": WANTED[batch], "gap, nats": actual}
        for name, batch in batches.items()
    ]
    return [*rows, versus(seconds, "products alone", "generate, 32 at once", amount, "sequences/s")]


def price_of_a_prompt(base: CausalLM, repeats: int) -> list[Row]:
    """Time of continuations after a prompt over that of as many after none, by how the prompt is kept."""
    copying = causal_lm(base.model, max_length=TOKENS)
    copying._shares_prompt = False
    prompt = prompts_of([[1 + row % 7 for row in range(PROMPT)]])
    runs = {"none": drawn(base, empty_prompts(1), CONTINUATIONS), "shared": drawn(base, prompt, CONTINUATIONS)}
    seconds = time_runs({**runs, "copied": drawn(copying, prompt, CONTINUATIONS)}, repeats)

    def row(how: str) -> Row:
        ratio = spread([item / other for item, other in zip(seconds[how], seconds["none"], strict=True)])
        return {"prompt": how, "times the time without it": ratio}

    return [{**row("shared"), "wanted": "at most 1.3", "gap, nats": gap(base, prompt, CONTINUATIONS)}, row("copied")]


def tables(repeats: int) -> list[Table]:
    base = causal_lm(gpt2(VOCAB, 256), max_length=TOKENS)
    return [
        Table(f"`draw` against `generate`, {DRAWS} sequences of {TOKENS} tokens", against_generate(base, repeats)),
        Table(f"{CONTINUATIONS} continuations of a prompt of {PROMPT} tokens", price_of_a_prompt(base, repeats)),
    ]
