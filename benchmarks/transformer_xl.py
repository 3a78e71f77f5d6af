"""Transformer-XL against its published layout and GPT-2: training, evaluating a stream, sampling, local attention.

4 layers, width 256, 4 heads, inner width 1,024, vocabulary 10,000, float32. Training: segments and memory of 128, 16 rows,
forward, backward and one AdamW step; memory is what a process of its own gained at its peak in two such steps over what it
held before them (Linux). Evaluating: one stream with an attention length of 128 to 1,600, against GPT-2 with fused attention
that reads a window of that length for every token. Sampling: 128 tokens after one symbol against `generate`; the gap is the
largest between the log-probability of a draw and its score. Local attention: forward and backward in chunks of 64 of given
queries, keys and values, against full relative attention at 2,048 positions (ours, and in the published layout), then alone up
to 16,384: linear.
"""

import torch

from benchmarks._device import on_device
from benchmarks._drawing import HEADS, INNER, LAYERS, WIDTH, drawn, gap, generated, gpt2
from benchmarks._published_layout import PublishedLayout
from benchmarks._timing import Row, Run, Table, peak_memory, spread, time_runs, versus
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.networks.relative_attention_ops import sinusoids
from esscher.networks.token_mixers import AttentionContext, RelativeAttention
from esscher.networks.transformer_config import TransformerXLConfig

REPEATS = 3
VOCAB, SEGMENT, ROWS, TOKENS = 10_000, 128, 16, 128
LENGTHS = {128: "growing", 400: None, 800: "at least 250", 1_600: None}
PEERS = {"published layout": "at least 1.5", "GPT-2": "at least 1, with 70 % of the memory"}
CHUNK, LONG = 64, (2_048, 4_096, 8_192, 16_384)


def ours(attention_span: int | None = None) -> NetworkBase:
    config = TransformerXLConfig(WIDTH, LAYERS, HEADS, INNER, memory=SEGMENT, attention_span=attention_span)
    return on_device(build_base(config, Space(VOCAB, TOKENS), rng=SeededRng(0)).eval())


def training(side: str) -> Run:
    """One update on a segment, the memory of the one before it being full."""
    tokens = on_device(SeededRng(0).categorical(torch.zeros(ROWS, VOCAB), SEGMENT))
    if side == "ours":
        base = ours().train()
        memory = base.read(base.init_memory(ROWS), tokens)[1]
        modules: torch.nn.Module = base

        def loss() -> torch.Tensor:
            return -base.read(memory, tokens)[0].mean()
    elif side == "published layout":
        peer = on_device(PublishedLayout(VOCAB, WIDTH, LAYERS, HEADS, INNER, SEGMENT))
        past = peer(tokens.T, tokens.T, [on_device(torch.zeros(0, ROWS, WIDTH))] * LAYERS)[1]
        modules = peer

        def loss() -> torch.Tensor:
            return peer(tokens.T, tokens.T, past)[0]
    else:
        model = gpt2(VOCAB, SEGMENT).train()
        modules = model

        def loss() -> torch.Tensor:
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    optimizer = torch.optim.AdamW(modules.parameters(), 1e-4)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return run


def twice(side: str) -> Run:
    run = training(side)
    return lambda: (run(), run())


def train(repeats: int) -> list[Row]:
    sides = ["ours", *PEERS]
    seconds = time_runs({side: training(side) for side in sides}, repeats)
    memory = {side: peak_memory(twice, side) for side in sides}
    tokens = dict.fromkeys(sides, ROWS * SEGMENT)
    return [
        {**versus(seconds, "ours", peer, tokens, "tokens/s"), "MB, ours": memory["ours"], "MB, peer": memory[peer],
         "wanted": wanted}
        for peer, wanted in PEERS.items()
    ]  # fmt: skip


def evaluate(length: int, repeats: int) -> Row:
    base, model, rows = ours(length), gpt2(VOCAB, length), 2 * max(SEGMENT, length // 2)
    text = on_device(torch.randint(VOCAB, (1, length + 2 * rows), generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        memory = base.read(base.init_memory(1), text[:, :length])[1]

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

    seconds = time_runs({"ours": stream, "sliding GPT-2": slide}, repeats)
    actual = versus(seconds, "ours", "sliding GPT-2", {"ours": 2 * rows, "sliding GPT-2": 3}, "tokens/s")
    return {"attention length": length, **actual, "wanted": LENGTHS[length]}


def sample(batch: int, repeats: int) -> Row:
    base, model = ours(), gpt2(VOCAB, 2 * TOKENS)
    seconds = time_runs({"ours": drawn(base, empty_prompts(1), batch), "generate": generated(model, batch, TOKENS)}, repeats)
    actual = versus(seconds, "ours", "generate", dict.fromkeys(seconds, batch * TOKENS), "tokens/s")
    return {"rows": batch, **actual, "wanted": "at least 2", "gap, nats": gap(base, empty_prompts(1), batch)}


def mixing(length: int, chunk: int | None) -> Run:
    """Forward and backward of the attention of one row, without the projections before and after it."""
    each = WIDTH // HEADS
    shapes = (HEADS, 1, length, each), (2, HEADS, 1, length, each), (2, HEADS, each)
    with SeededRng(0).fork_torch_rng():
        mixer = on_device(RelativeAttention(TransformerXLConfig(WIDTH, 1, HEADS), chunk))
        query, known, biases = (on_device(torch.randn(*shape)).requires_grad_() for shape in shapes)

    def places(most: int, least: int) -> torch.Tensor:
        return sinusoids(on_device(torch.arange(most, least - 1, -1)), WIDTH, torch.float32)

    def run() -> None:
        mixer._attention(query, known, biases, AttentionContext(places, True)).sum().backward()

    return run


def plain_mixing(length: int) -> Run:
    """The same attention to everything in the published layout: scores [query, key, row, head], the shift by a copy."""
    with SeededRng(0).fork_torch_rng():
        query, key, value = (on_device(torch.randn(length, 1, HEADS, WIDTH // HEADS)).requires_grad_() for _ in range(3))
        place = on_device(torch.randn(length, HEADS, WIDTH // HEADS)).requires_grad_()
    mask = on_device(torch.ones(length, length, dtype=torch.bool)).triu(1)[:, :, None, None]

    def run() -> None:
        content, position = torch.einsum("ibnd,jbnd->ijbn", query, key), torch.einsum("ibnd,jnd->ijbn", query, place)
        padded = torch.cat([position.new_zeros(length, 1, 1, HEADS), position], 1)
        position = padded.view(length + 1, length, 1, HEADS)[1:].view_as(position)
        share = ((content + position) * 0.125).masked_fill(mask, -torch.inf).softmax(1)
        torch.einsum("ijbn,jbnd->ibnd", share, value).sum().backward()

    return run


def local(repeats: int) -> list[Row]:
    wanted = {"full, published layout": "at least 12", "full, ours": None}
    runs = {"chunks of 64": mixing(LONG[0], CHUNK), "full, ours": mixing(LONG[0], None)}
    seconds = time_runs({**runs, "full, published layout": plain_mixing(LONG[0])}, repeats)
    return [{**versus(seconds, "chunks of 64", peer), "wanted": message} for peer, message in wanted.items()]


def local_alone(repeats: int) -> list[Row]:
    seconds = time_runs({str(length): mixing(length, CHUNK) for length in LONG}, repeats)
    return [
        {
            "positions": n,
            "ms": spread([1000 * second for second in seconds[str(n)]]),
            "MB": peak_memory(mixing, n, CHUNK),
        }
        for n in LONG
    ]


def tables(repeats: int) -> list[Table]:
    return [
        Table(f"training, segments and memory of {SEGMENT}, {ROWS} rows", train(repeats)),
        Table("evaluating a stream", [evaluate(length, repeats) for length in LENGTHS]),
        Table(f"sampling {TOKENS} tokens", [sample(batch, repeats) for batch in (1, 32)]),
        Table(f"local attention at {LONG[0]:,} positions", local(repeats)),
        Table("local attention alone", local_alone(repeats)),
    ]
