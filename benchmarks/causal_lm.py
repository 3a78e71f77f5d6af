"""Sequences a second of `draw` from a Hugging Face model against the model's own `generate`, and the price of a prompt.

    python benchmarks/causal_lm.py [--repeats 5] [--threads 2] [--json]

One GPT-2 of `transformers` (4 layers, width 256, 4 heads, vocabulary 5,000) serves both sides, in this process and in turns:
512 sequences of 40 tokens after one begin symbol, no end symbol, sampling without truncation; `generate` in batches of 32
and of 128, `draw` as it chooses. Our draws come with their log-probabilities, which are compared with scoring. Then 64
continuations of 40 tokens, of one prompt of 120 tokens and of none. Medians, with the smallest and the largest of the
repeats; ratios are taken within each repeat.
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

from esscher.bases.causal_lm import CausalLM, causal_lm
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.space import Sequences, empty_prompts, prompts_of

VOCAB, TOKENS, DRAWS, PROMPT, CONTINUATIONS = 5_000, 40, 512, 120, 64
BATCHES = (32, 128)


def gpt2() -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=256, n_embd=256, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with Seeded(0).governs_torch():
        return transformers.GPT2LMHeadModel(config).eval()


def generate(model: transformers.GPT2LMHeadModel, batch: int) -> Callable[[], None]:
    """All sequences by `generate`, from the model itself: no truncation, and exactly so many tokens."""
    begin = torch.zeros(batch, 1, dtype=torch.long)

    def run() -> None:
        for _ in range(DRAWS // batch):
            with torch.no_grad():
                found = model.generate(
                    begin, attention_mask=torch.ones_like(begin), do_sample=True, top_k=0, use_cache=True,
                    min_new_tokens=TOKENS, max_new_tokens=TOKENS,
                )  # fmt: skip
            if found.shape != (batch, 1 + TOKENS):
                raise RuntimeError(f"generate gave {tuple(found.shape)}, not {(batch, 1 + TOKENS)}: the comparison is void.")

    return run


def sample(base: CausalLM, prompts: Sequences, draws: int) -> Callable[[], None]:
    """All sequences by `draw`, with their log-probabilities."""
    rng = Seeded(1)

    def run() -> None:
        x, log_prob = draw(base, prompts, draws, rng=rng)
        if int(x.lengths.min()) != TOKENS or log_prob.shape != (1, draws):
            raise RuntimeError(f"draw gave {tuple(x.tokens.shape)}: the comparison is void.")

    return run


def worst_gap(base: CausalLM, prompts: Sequences, draws: int) -> float:
    """The largest difference between the log-probability of a draw and its score."""
    x, log_prob = draw(base, prompts, draws, rng=Seeded(2))
    with torch.no_grad():
        return float((base.log_probs(x).double().sum(-1) - log_prob[0]).abs().max())


def against_generate(base: CausalLM, repeats: int) -> dict[str, object]:
    runs = {f"generate, {batch} at once": generate(base.model, batch) for batch in BATCHES}
    seconds = in_turns({**runs, "draw": sample(base, empty_prompts(1), DRAWS)}, repeats)
    ratios = {name: spread([a / b for a, b in zip(seconds[name], seconds["draw"], strict=True)]) for name in runs}
    speed = {name: spread([DRAWS / one for one in some]) for name, some in seconds.items()}
    return {"sequences_per_second": speed, "draw_is_faster": ratios, "gap": worst_gap(base, empty_prompts(1), 64)}


def price_of_a_prompt(base: CausalLM, repeats: int) -> dict[str, object]:
    prompt = prompts_of([[1 + row % 7 for row in range(PROMPT)]])
    runs = {"prompt": sample(base, prompt, CONTINUATIONS), "none": sample(base, empty_prompts(1), CONTINUATIONS)}
    seconds = in_turns(runs, repeats)
    ratio = spread([a / b for a, b in zip(seconds["prompt"], seconds["none"], strict=True)])
    return {
        "seconds": {name: spread(some) for name, some in seconds.items()},
        "ratio": ratio,
        "gap": worst_gap(base, prompt, 64),
    }


def show(result: dict[str, object]) -> None:
    table = Table("what", "sequences a second", "draw is faster by", "worst gap to scoring, nats")
    speed = result["sampling"]["sequences_per_second"]
    for name, some in speed.items():
        ratio = result["sampling"]["draw_is_faster"].get(name)
        gap = f"{result['sampling']['gap']:.1g}" if ratio is None else ""
        told = "" if ratio is None else f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        table.add_row(name, f"{some['median']:,.0f} [{some['low']:,.0f}, {some['high']:,.0f}]", told, gap)
    ratio = result["prompt"]["ratio"]
    told = f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] of the time without it"
    table.add_row(f"{CONTINUATIONS} draws, prompt of {PROMPT}", told, "", f"{result['prompt']['gap']:.1g}")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    base = causal_lm(gpt2(), max_length=TOKENS)
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {options.threads} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "sampling": against_generate(base, options.repeats),
        "prompt": price_of_a_prompt(base, options.repeats),
    }
    show(result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
