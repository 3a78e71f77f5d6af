"""Tokens a second of `draw` against Hugging Face `generate`, and rows a second of a recurrent base.

    python benchmarks/sampling.py [--repeats 5] [--threads 2] [--batches 32 128] [--json]

Both sides run in this process, in turns, on networks of equal size (4 layers, width 256, 4 heads, inner width
1024, vocabulary 10,000): 128 tokens after one begin symbol, batches of 32 and 128, no end symbol, sampling
without truncation. Our draws come with their log-probabilities, which are compared with scoring. The recurrent
base is an LSTM of 2 layers, width 200, on 3 tokens and length 31, 4,096 rows. A table of medians, with the
smallest and the largest of the repeats; the ratio is taken within each repeat.
"""

import argparse
import json
import os
import platform
import warnings
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from _turns import in_turns, spread
from rich.console import Console
from rich.table import Table

from esscher.bases.config import RecurrentConfig, TransformerConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.space import Space, empty_prompts

VOCAB, TOKENS, WIDTH, LAYERS, HEADS, INNER = 10_000, 128, 256, 4, 4, 1024


def ours(positions: str) -> NetworkBase:
    config = TransformerConfig(WIDTH, LAYERS, HEADS, INNER, positions=positions, max_positions=2 * TOKENS)
    return build_base(config, Space(VOCAB, TOKENS), rng=Seeded(0)).eval()


def theirs() -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=2 * TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER,
        bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def generate(model: transformers.GPT2LMHeadModel, batch: int) -> Callable[[], None]:
    """A run of `generate` that samples from the model itself: no truncation, and exactly so many tokens."""
    begin = torch.zeros(batch, 1, dtype=torch.long)

    def run() -> None:
        with torch.no_grad():
            found = model.generate(
                begin, attention_mask=torch.ones_like(begin), do_sample=True, top_k=0, use_cache=True,
                min_new_tokens=TOKENS, max_new_tokens=TOKENS,
            )  # fmt: skip
        if found.shape != (batch, 1 + TOKENS):
            raise RuntimeError(f"generate gave {tuple(found.shape)}, not {(batch, 1 + TOKENS)}: the comparison is void.")

    return run


def sample(base: NetworkBase, batch: int) -> Callable[[], None]:
    """A run of `draw`, with the log-probabilities of the draws."""
    rng = Seeded(1)

    def run() -> None:
        x, log_prob = draw(base, empty_prompts(1), batch, rng=rng)
        if x.tokens.shape != (batch, base.space.max_length) or log_prob.shape != (1, batch):
            raise RuntimeError(f"draw gave {tuple(x.tokens.shape)}: the comparison is void.")

    return run


def worst_gap(base: NetworkBase, batch: int) -> float:
    """The largest difference between the log-probability of a draw and its score."""
    x, log_prob = draw(base, empty_prompts(1), batch, rng=Seeded(2))
    with torch.no_grad():
        return float((base.log_probs(x).double().sum(-1) - log_prob[0]).abs().max())


def compare(batch: int, repeats: int) -> dict[str, object]:
    """Tokens a second of `generate` and of our Transformer with either kind of positions."""
    rotary, learned = ours("rotary"), ours("learned")
    runs = {"generate": generate(theirs(), batch), "rotary": sample(rotary, batch), "learned": sample(learned, batch)}
    seconds = in_turns(runs, repeats)
    work = batch * TOKENS
    result: dict[str, object] = {"batch": batch, "gap": max(worst_gap(rotary, batch), worst_gap(learned, batch))}
    for name, some in seconds.items():
        ratio = [theirs / ours for theirs, ours in zip(seconds["generate"], some, strict=True)]
        result[name] = {"tokens_per_second": spread([work / one for one in some]), "ratio": spread(ratio)}
    return result


def recurrent(cell: str, repeats: int) -> dict[str, object]:
    """Rows a second of a recurrent base on short strings of three symbols."""
    config = RecurrentConfig(cell, 200, 2)
    base = build_base(config, Space(3, 31), rng=Seeded(0)).eval()
    seconds = in_turns({cell: sample(base, 4096)}, repeats)[cell]
    return {"cell": cell, "rows_per_second": spread([4096 / one for one in seconds]), "gap": worst_gap(base, 4096)}


def show(result: dict[str, object]) -> None:
    table = Table("what", "batch", "per second", "against generate", "worst gap to scoring, nats")
    for row in result["transformer"]:
        for name in ("generate", "rotary", "learned"):
            speed, ratio = row[name]["tokens_per_second"], row[name]["ratio"]
            gap = "" if name == "generate" else f"{row['gap']:.1g}"
            told = f"{speed['median']:,.0f} tokens [{speed['low']:,.0f}, {speed['high']:,.0f}]"
            table.add_row(
                name, str(row["batch"]), told, f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]", gap
            )
    for row in result["recurrent"]:
        speed = row["rows_per_second"]
        told = f"{speed['median']:,.0f} rows [{speed['low']:,.0f}, {speed['high']:,.0f}]"
        table.add_row(row["cell"], "4096", told, "", f"{row['gap']:.1g}")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="*", default=[32, 128])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {options.threads} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "transformer": [compare(batch, options.repeats) for batch in options.batches],
        "recurrent": [recurrent(cell, options.repeats) for cell in ("lstm", "gru")],
    }
    show(result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
