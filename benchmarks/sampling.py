"""Tokens a second of `draw` from our Transformers against Hugging Face `generate`, and rows a second of recurrent bases.

Networks of equal size (4 layers, width 256, 4 heads, inner width 1,024, vocabulary 10,000, float32): 128 tokens after one
begin symbol, batches of 32 and 128, no end symbol, sampling without truncation; `generate` is that of GPT-2 with its cache.
Our draws come with their log-probabilities; the gap is the largest between those and the scores of whole sequences, sums over
128 tokens in float32. The recurrent bases have 2 layers of 200 on 3 tokens and length 31, 4,096 rows; they have no peer here.
Where the time goes, and what was tried: docs/why/shared_prompt.md.
"""

from benchmarks._device import on_device
from benchmarks._drawing import HEADS, INNER, LAYERS, WIDTH, drawn, gap, generated, gpt2
from benchmarks._timing import Row, Table, spread, time_runs, versus
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.networks.recurrent_config import GruConfig, LstmConfig
from esscher.networks.transformer_config import TransformerConfig

REPEATS = 3
VOCAB, TOKENS, ROWS = 10_000, 128, 4_096
POSITIONS = ("rotary", "learned")
CELLS = {"lstm": LstmConfig, "gru": GruConfig}


def ours(positions: str) -> NetworkBase:
    config = TransformerConfig(WIDTH, LAYERS, HEADS, INNER, positions=positions, max_positions=2 * TOKENS)
    return on_device(build_base(config, Space(VOCAB, TOKENS), rng=SeededRng(0)).eval())


def transformers_at(batch: int, repeats: int) -> list[Row]:
    """Tokens a second of `generate` and of our Transformer with either kind of positions."""
    bases = {f"draw, {positions} positions": ours(positions) for positions in POSITIONS}
    runs = {name: drawn(base, empty_prompts(1), batch) for name, base in bases.items()}
    seconds = time_runs({"generate": generated(gpt2(VOCAB, 2 * TOKENS), batch, TOKENS), **runs}, repeats)
    tokens = dict.fromkeys(seconds, batch * TOKENS)
    return [
        {
            "batch": batch,
            **versus(seconds, name, "generate", tokens, "tokens/s"),
            "gap, nats": gap(base, empty_prompts(1), batch),
        }
        for name, base in bases.items()
    ]


def recurrent(cell: str, repeats: int) -> Row:
    """Rows a second of a recurrent base on short strings of three symbols."""
    base = on_device(build_base(CELLS[cell](200, 2), Space(3, 31), rng=SeededRng(0)).eval())
    seconds = time_runs({cell: drawn(base, empty_prompts(1), ROWS)}, repeats)[cell]
    return {
        "base": cell,
        "rows/s": spread([ROWS / second for second in seconds]),
        "gap, nats": gap(base, empty_prompts(1), ROWS),
    }


def tables(repeats: int) -> list[Table]:
    return [
        Table("`draw` against `generate`", [row for batch in (32, 128) for row in transformers_at(batch, repeats)]),
        Table(f"recurrent bases, {ROWS:,} rows", [recurrent(cell, repeats) for cell in CELLS]),
    ]
