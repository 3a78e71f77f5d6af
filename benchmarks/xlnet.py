"""XLNet against that of `transformers`, and Local-XLNet against full attention: a training step of two streams.

4 layers, width 256, 4 heads, inner width 1,024, vocabulary 10,000; forward, backward and one AdamW step. Ours against theirs,
from the same weights, whose losses must agree: windows of 512 tokens, 85 of them targets in an order by chance, 4 rows. Chunks
of 64 against full attention, both ours: one row of 4,096 tokens, 683 of them targets. Memory is what a process of its own
gained at its peak in one such step over what it held before (Linux).
"""

import torch
from torch import nn

from benchmarks._device import on_device
from benchmarks._timing import Row, Run, Table, peak_memory, time_runs, versus
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.hub.xlnet import to_transformers
from esscher.networks.transformer_config import XLNetConfig
from esscher.networks.xlnet import FactorizationOrder

REPEATS = 3
VOCAB, WIDTH, LAYERS, HEADS, INNER, CHUNK = 10_000, 256, 4, 4, 1024, 64
LENGTH, ROWS, LONG = 512, 4, 4_096
ONE_IN = 6
PARTS = {f"{ROWS} x {LENGTH} tokens": ("ours", "transformers"), f"{LONG:,} tokens": ("local", "full")}


def ours(mixer: str = "full") -> NetworkBase:
    config = XLNetConfig(WIDTH, LAYERS, HEADS, INNER, mixers=(mixer,), spans=(CHUNK,))
    return on_device(build_base(config, Space(VOCAB, LENGTH), rng=SeededRng(0)).train())


def given(rows: int, length: int) -> tuple[torch.Tensor, FactorizationOrder, torch.Tensor]:
    """Tokens, the order in which they are seen, and the targets' tokens."""
    tokens = SeededRng(0).categorical(torch.zeros(rows, VOCAB), length)
    turn = torch.stack([SeededRng(1).stream(row).permutation(length) for row in range(rows)])
    targets = turn.argsort(1)[:, -round(length / ONE_IN) :].sort(1).values
    rank = torch.where(turn < length - targets.shape[1], -1, turn)
    tokens, rank, targets = on_device((tokens, rank, targets))
    return tokens, FactorizationOrder(rank, targets), tokens.gather(1, targets)


def loss_of(side: str) -> tuple[nn.Module, Run]:
    """A network, and what makes its loss."""
    rows, length = (ROWS, LENGTH) if side in ("ours", "transformers") else (1, LONG)
    tokens, factorization_order, asked = given(rows, length)
    if side == "transformers":
        model = on_device(to_transformers(ours()).train())
        mapping = nn.functional.one_hot(factorization_order.targets, length).float()
        hidden = (
            factorization_order.order_index[:, None] > factorization_order.order_index[:, :, None] - mapping.sum(1)[:, :, None]
        ).float()
        return model, lambda: model(tokens, perm_mask=hidden, target_mapping=mapping, labels=asked, use_mems=False).loss
    base = ours("local" if side == "local" else "full")
    network = base.any_order
    return base, lambda: -network.log_probs(network.target_hidden(tokens, factorization_order, None, 0)[0], asked).mean()


def step(side: str) -> Run:
    module, loss = loss_of(side)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-4)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return run


def gap() -> float:
    """By how much the losses of ours and theirs differ from the same weights."""
    with torch.no_grad():
        first, second = (float(loss_of(side)[1]()) for side in ("ours", "transformers"))
    return abs(first - second)


def compare(work: str, repeats: int) -> Row:
    ours, peer = PARTS[work]
    seconds = time_runs({side: step(side) for side in (peer, ours)}, repeats)
    memory = {side: peak_memory(step, side) for side in (ours, peer)}
    return {"work": work, **versus(seconds, ours, peer), "MB, ours": memory[ours], "MB, peer": memory[peer]}


def tables(repeats: int) -> list[Table]:
    first, second = PARTS
    return [Table("a training step", [{**compare(first, repeats), "gap of losses": gap()}, compare(second, repeats)])]
