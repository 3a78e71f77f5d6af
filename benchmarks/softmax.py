"""Time and memory of scores that never keep all logits, against cross-entropy of a linear layer; and of the adaptive softmax.

Forward and backward of a mean loss over 2,048 rows of width 256 and a vocabulary of 10,000, hidden vectors and weights both
learning; the same with another gradient for each row (weights of an importance sample), where the sums over rows are made
twice; the forward pass alone without gradient; and an adaptive softmax of 30,000 tokens (cutoffs 3,000 and 10,000, shrink 4)
against the plain one, tokens as frequent as by Zipf. Memory is what the process gained at its peak over what it had, vectors
and weights themselves not counted, each side in a process of its own.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from benchmarks._device import device, on_device
from benchmarks._timing import Row, Run, Table, peak_memory, time_runs, versus
from esscher.core.randomness import SeededRng
from esscher.heads.adaptive import AdaptiveSoftmax
from esscher.heads.chunked_log_softmax import softmax_log_probs

REPEATS = 3
ROWS, WIDTH, VOCAB, LARGE, CUTOFFS, SHRINK = 2048, 256, 10_000, 30_000, (3_000, 10_000), 4


def ends(vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden vectors, weights, and tokens as frequent as by Zipf."""
    with SeededRng(0).fork_torch_rng():
        hidden, weight = torch.randn(ROWS, WIDTH), torch.randn(vocab, WIDTH) * 0.05
        tokens = torch.multinomial(1 / torch.arange(1, vocab + 1), ROWS, replacement=True)
    hidden, weight, tokens = on_device((hidden, weight, tokens))
    return hidden.requires_grad_(), weight.requires_grad_(), tokens


def plain(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(linear(hidden, weight), tokens, reduction="none")


def ours(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    return -softmax_log_probs(hidden, weight, None, tokens)


def learns(loss: Callable[..., Tensor], given: tuple[Tensor, Tensor, Tensor], incoming: Tensor) -> Run:
    def run() -> None:
        hidden, weight, _ = given
        torch.autograd.grad(loss(*given), (hidden, weight), incoming)

    return run


def scores(loss: Callable[..., Tensor], given: tuple[Tensor, Tensor, Tensor]) -> Run:
    def run() -> None:
        with torch.no_grad():
            loss(*given)

    return run


def adapts(hidden: Tensor, tokens: Tensor) -> Run:
    with SeededRng(1).fork_torch_rng():
        head = on_device(AdaptiveSoftmax(LARGE, WIDTH, CUTOFFS, SHRINK))

    def run() -> None:
        torch.autograd.grad(head.log_probs(hidden, tokens).mean(), (hidden, *head.parameters()))

    return run


def runs(work: str) -> dict[str, Run]:
    """The sides of a piece of work, the one they are compared with first."""
    inputs = ends(LARGE if work == "adaptive" else VOCAB)
    even = torch.full((ROWS,), 1 / ROWS, device=device())
    if work == "learning":
        return {"cross-entropy": learns(plain, inputs, even), "softmax_score": learns(ours, inputs, even)}
    if work == "learning, weighted":
        uneven = torch.linspace(0, 1, ROWS, device=device())
        return {"cross-entropy": learns(plain, inputs, uneven), "softmax_score": learns(ours, inputs, uneven)}
    if work == "scoring":
        return {"cross-entropy": scores(plain, inputs), "softmax_score": scores(ours, inputs)}
    return {
        "cross-entropy": learns(plain, inputs, even),
        "softmax_score": learns(ours, inputs, even),
        "adaptive softmax": adapts(inputs[0], inputs[2]),
    }


def run_of(work: str, side: str) -> Run:
    return runs(work)[side]


def compare(work: str, repeats: int) -> list[Row]:
    seconds = time_runs(runs(work), repeats)
    memory = {side: peak_memory(run_of, work, side) for side in seconds}
    peer, *sides = seconds
    return [{"work": work, **versus(seconds, side, peer), "MB, ours": memory[side], "MB, peer": memory[peer]} for side in sides]


def tables(repeats: int) -> list[Table]:
    works = ("learning", "learning, weighted", "scoring", "adaptive")
    return [Table(f"{ROWS:,} rows of width {WIDTH}", [row for work in works for row in compare(work, repeats)])]
