"""Transformer-XL against its published layout and GPT-2: training, evaluating a stream, sampling, local attention.

    python benchmarks/transformer_xl.py [--repeats 5] [--threads 2] [--parts train evaluate sample local] [--json]

All sides run in this process, in turns: 4 layers, width 256, 4 heads, inner width 1024, vocabulary 10,000. Training: segments
and memory of 128, 16 rows, forward, backward and one AdamW step; the peak of memory is that of a process of its own that does
two such steps, above what it held before them (Linux). Evaluating: one stream with an attention length of 128 to 1,600,
against GPT-2 with fused attention that reads a window of that length for every token. Sampling: 128 tokens after one symbol
against `generate`. Local attention: forward and backward in chunks of 64 of given queries, keys and values, against full
relative attention at 2,048 positions (ours, and in the published layout), then alone up to 16,384. Medians, with the smallest
and the largest of the repeats; ratios within each repeat.
"""

import argparse
import json
import multiprocessing
import os
import platform
import warnings
from collections.abc import Callable
from multiprocessing import Queue
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from _published_layout import PublishedLayout
from _turns import in_turns, peak, spread
from rich.console import Console
from rich.table import Table

from esscher.bases.config import TransformerXLConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.networks.mixers import RelativeAttention, Sight
from esscher.networks.relative import sinusoids
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.space import Space, empty_prompts

VOCAB, WIDTH, LAYERS, HEADS, INNER, SEGMENT, ROWS, TOKENS = 10_000, 256, 4, 4, 1024, 128, 16, 128
LENGTHS = (128, 400, 800, 1_600)
CHUNK, LONG = 64, (2_048, 4_096, 8_192, 16_384)


def ours(reach: int | None = None) -> NetworkBase:
    config = TransformerXLConfig(WIDTH, LAYERS, HEADS, None, INNER, memory=SEGMENT, reach=reach)
    return build_base(config, Space(VOCAB, TOKENS), rng=Seeded(0)).eval()


def gpt2(positions: int) -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=positions, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=None, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def training(side: str) -> Callable[[], None]:
    """One update on a segment, the memory of the one before it being full."""
    tokens = Seeded(0).categorical(torch.zeros(ROWS, VOCAB), SEGMENT)
    if side == "ours":
        base = ours().train()
        memory = base.read(base.open(ROWS), tokens)[1]
        modules: torch.nn.Module = base

        def loss() -> torch.Tensor:
            return -base.read(memory, tokens)[0].mean()
    elif side == "published layout":
        peer = PublishedLayout(VOCAB, WIDTH, LAYERS, HEADS, INNER, SEGMENT)
        past = peer(tokens.T, tokens.T, [torch.zeros(0, ROWS, WIDTH)] * LAYERS)[1]
        modules = peer

        def loss() -> torch.Tensor:
            return peer(tokens.T, tokens.T, past)[0]
    else:
        model = gpt2(SEGMENT).train()
        modules = model

        def loss() -> torch.Tensor:
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    optimiser = torch.optim.AdamW(modules.parameters(), 1e-4)

    def run() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return run


def tell_peak(make: Callable[..., Callable[[], None]], given: tuple[Any, ...], times: int, found: "Queue[float]") -> None:
    """Put the megabytes that so many runs need at their peak."""
    run = make(*given)

    def several() -> None:
        for _ in range(times):
            run()

    found.put(peak(several))


def peak_elsewhere(make: Callable[..., Callable[[], None]], *given: Any, times: int = 1) -> float:
    """The peak of runs in a process of their own."""
    context = multiprocessing.get_context("spawn")
    found: Queue[float] = context.Queue()
    process = context.Process(target=tell_peak, args=(make, given, times, found))
    process.start()
    megabytes = found.get()
    process.join()
    return megabytes


def compare(runs: dict[str, Callable[[], None]], work: dict[str, float], repeats: int) -> dict[str, object]:
    """Work a second of each, and how many times faster ours is within each repeat."""
    seconds = in_turns(runs, repeats)
    speed = {name: [work[name] / one for one in some] for name, some in seconds.items()}
    return {
        name: {
            "per_second": spread(some),
            "ours_is_faster": spread([a / b for a, b in zip(speed["ours"], some, strict=True)]),
        }
        for name, some in speed.items()
    }


def train(repeats: int) -> dict[str, object]:
    sides = ["ours", "published layout", "GPT-2"]
    found = compare({side: training(side) for side in sides}, dict.fromkeys(sides, ROWS * SEGMENT), repeats)
    return {"tokens": found, "peak_megabytes": {side: peak_elsewhere(training, side, times=2) for side in sides}}


def evaluate(length: int, repeats: int) -> dict[str, object]:
    base, model, rows = ours(length), gpt2(length), 2 * max(SEGMENT, length // 2)
    text = torch.randint(VOCAB, (1, length + 2 * rows), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        memory = base.read(base.open(1), text[:, :length])[1]

    @torch.no_grad()
    def stream() -> None:
        now = memory
        for piece in torch.split(text[:, length:], rows, 1):
            _, now = base.read(now, piece)

    @torch.no_grad()
    def slide() -> None:
        for first in range(3):
            logits = model(input_ids=text[:, first : first + length], use_cache=False, logits_to_keep=1).logits
            logits.log_softmax(-1)

    return compare({"ours": stream, "sliding GPT-2": slide}, {"ours": 2 * rows, "sliding GPT-2": 3}, repeats)


def sample(batch: int, repeats: int) -> dict[str, object]:
    base, model, begin, rng = ours(), gpt2(2 * TOKENS), torch.zeros(batch, 1, dtype=torch.long), Seeded(1)

    def mine() -> None:
        draw(base, empty_prompts(1), batch, rng=rng)

    @torch.no_grad()
    def peer() -> None:
        model.generate(begin, attention_mask=torch.ones_like(begin), do_sample=True, top_k=0, min_new_tokens=TOKENS,
                       max_new_tokens=TOKENS)  # fmt: skip

    x, log_prob = draw(base, empty_prompts(1), batch, rng=Seeded(2))
    with torch.no_grad():
        gap = float((base.log_probs(x).double().sum(-1) - log_prob[0]).abs().max())
    return {
        **compare({"ours": mine, "generate": peer}, dict.fromkeys(("ours", "generate"), batch * TOKENS), repeats),
        "gap": gap,
    }


def mixing(length: int, chunk: int | None) -> Callable[[], None]:
    """Forward and backward of the attention of one row, without the projections before and after it."""
    each = WIDTH // HEADS
    shapes = (HEADS, 1, length, each), (2, HEADS, 1, length, each), (2, HEADS, each)
    with Seeded(0).governs_torch():
        mixer = RelativeAttention(TransformerXLConfig(WIDTH, 1, HEADS), chunk)
        query, known, biases = (torch.randn(*shape, requires_grad=True) for shape in shapes)

    def places(most: int, least: int) -> torch.Tensor:
        return sinusoids(torch.arange(most, least - 1, -1), WIDTH, torch.float32)

    def run() -> None:
        attend = mixer._all if chunk is None else mixer._near
        attend(query, known, biases, Sight(places, True)).sum().backward()

    return run


def plain_mixing(length: int) -> Callable[[], None]:
    """The same attention to everything in the published layout: scores [query, key, row, head], the shift by a copy."""
    with Seeded(0).governs_torch():
        query, key, value = (torch.randn(length, 1, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3))
        place = torch.randn(length, HEADS, WIDTH // HEADS, requires_grad=True)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)[:, :, None, None]

    def run() -> None:
        content, position = torch.einsum("ibnd,jbnd->ijbn", query, key), torch.einsum("ibnd,jnd->ijbn", query, place)
        padded = torch.cat([position.new_zeros(length, 1, 1, HEADS), position], 1)
        position = padded.view(length + 1, length, 1, HEADS)[1:].view_as(position)
        share = ((content + position) * 0.125).masked_fill(mask, -torch.inf).softmax(1)
        torch.einsum("ijbn,jbnd->ibnd", share, value).sum().backward()

    return run


def local(repeats: int) -> dict[str, object]:
    sides = {
        "ours": mixing(LONG[0], CHUNK),
        "full, ours": mixing(LONG[0], None),
        "full, published layout": plain_mixing(LONG[0]),
    }
    both = compare(sides, dict.fromkeys(sides, 1), repeats)
    alone = in_turns({str(n): mixing(n, CHUNK) for n in LONG}, repeats)
    memory = {str(n): peak_elsewhere(mixing, n, CHUNK) for n in LONG}
    return {"at 2,048": both, "seconds": {n: spread(some) for n, some in alone.items()}, "peak_megabytes": memory}


def show(found: dict[str, object]) -> None:
    table = Table("what", "side", "a second", "ours is faster by", "other")

    def text(one: dict[str, float], digits: int) -> str:
        return f"{one['median']:,.{digits}f} [{one['low']:,.{digits}f}, {one['high']:,.{digits}f}]"

    def rows(what: str, sides: dict, others: dict | None = None) -> None:
        for side, one in sides.items():
            if isinstance(one, dict):
                other = f"{others[side]:,.0f} MB" if others else ""
                table.add_row(what, side, text(one["per_second"], 1), text(one["ours_is_faster"], 2), other)
            else:
                table.add_row(what, side, "", "", f"{one:.0e}")

    for what, part in found.items():
        if what == "train":
            rows(what, part["tokens"], part["peak_megabytes"])
        elif what == "local":
            rows("local, 2,048", part["at 2,048"])
            for length, one in part["seconds"].items():
                table.add_row(
                    "local", f"{int(length):,}", "", "", f"{text(one, 3)} s, {part['peak_megabytes'][length]:,.0f} MB"
                )
        elif isinstance(part, dict) and what != "machine":
            rows(what, part)
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="+", default=["train", "evaluate", "sample", "local"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    found: dict[str, object] = {
        "machine": {"processor": platform.processor(), "threads": given.threads, "torch": torch.__version__}
    }
    if "train" in given.parts:
        found["train"] = train(given.repeats)
    if "evaluate" in given.parts:
        found |= {f"evaluate, {length:,}": evaluate(length, given.repeats) for length in LENGTHS}
    if "sample" in given.parts:
        found |= {f"sample, {batch} at once": sample(batch, given.repeats) for batch in (1, 32)}
    if "local" in given.parts:
        found["local"] = local(given.repeats)
    print(json.dumps(found)) if given.json else show(found)


if __name__ == "__main__":
    main()
