"""Time and memory of a mixture of 15 softmaxes, against its direct formulation.

Forward and backward of a mean loss over 840 tokens, contexts of width 280, a vocabulary of 10,000: contexts, prior, weights
and biases all learning. The direct formulation makes all probabilities of all components and mixes them. `peaked` is the same
work with a prior as of a trained model whose logits have standard deviation 3, where components below a prior of 0.01 are
left out; the bound is what their scores can be wrong by, in nats. Memory is what the process gained at its peak over what it
had, vectors and weights themselves not counted, each side in a process of its own.
"""

import torch
from torch import Tensor, nn

from benchmarks._device import on_device
from benchmarks._timing import Row, Run, Table, peak_memory, time_runs, versus
from esscher.core.randomness import SeededRng
from esscher.heads.chunked_log_softmax import mixture_log_probs, softmax_log_probs
from esscher.heads.mixture import MixtureHead

REPEATS = 3
ROWS, WIDTH, VOCAB, COMPONENTS, LEAST = 840, 280, 10_000, 15, 0.01
SPREADS = {"even": 0.3, "peaked": 3.0}


def ends(spread: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Contexts, logits of the prior, weights, biases, and tokens as frequent as by Zipf."""
    with SeededRng(0).fork_torch_rng():
        contexts, prior = torch.randn(ROWS, COMPONENTS, WIDTH).tanh_(), torch.randn(ROWS, COMPONENTS) * spread
        weight, bias = torch.empty(VOCAB, WIDTH).uniform_(-0.1, 0.1), torch.zeros(VOCAB)
        tokens = torch.multinomial(1 / torch.arange(1, VOCAB + 1), ROWS, replacement=True)
    return (*(on_device(item).requires_grad_() for item in (contexts, prior, weight, bias)), on_device(tokens))


def direct(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    every = (contexts.flatten(0, 1) @ weight.T + bias).softmax(-1).view(ROWS, COMPONENTS, VOCAB)
    mixed = (every * prior.softmax(-1)[..., None]).sum(1)
    return nn.functional.nll_loss(mixed.log(), tokens)


def ours(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    return -mixture_log_probs(contexts, prior.log_softmax(-1), weight, bias, tokens).mean()


def fewer(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    kept = prior.masked_fill(prior.softmax(-1) < LEAST, -torch.inf)
    return -mixture_log_probs(contexts, kept.log_softmax(-1), weight, bias, tokens).mean()


def single(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    return -softmax_log_probs(contexts[:, 0], weight, bias, tokens).mean() + 0 * prior.sum()


SIDES = {"direct": direct, "mixture_score": ours, f"min_prior={LEAST}": fewer, "one softmax": single}
WORK = {"even": ("mixture_score", "one softmax"), "peaked": ("mixture_score", f"min_prior={LEAST}")}
WANTED = {("even", "mixture_score"): "1.7 times as fast, a tenth of the memory"}


def run_of(work: str, side: str) -> Run:
    *leaves, tokens = ends(SPREADS[work])

    def run() -> None:
        torch.autograd.grad(SIDES[side](*leaves, tokens), leaves)

    return run


def compare(work: str, repeats: int) -> list[Row]:
    seconds = time_runs({side: run_of(work, side) for side in ("direct", *WORK[work])}, repeats)
    memory = {side: peak_memory(run_of, work, side) for side in seconds}
    return [
        {"prior": work, **versus(seconds, side, "direct"), "MB, ours": memory[side], "MB, peer": memory["direct"],
         "wanted": WANTED.get((work, side))}
        for side in WORK[work]
    ]  # fmt: skip


@torch.no_grad()
def wrong_by() -> Row:
    """Nats: what leaving components out changes scores by, and the bound that the head tells; on the peaked prior."""
    _, _, weight, _, tokens = ends(SPREADS["peaked"])
    with SeededRng(1).fork_torch_rng():
        head, hidden = MixtureHead(VOCAB, WIDTH, COMPONENTS), torch.randn(ROWS, WIDTH)
        head.prior.weight.normal_(std=SPREADS["peaked"] / WIDTH**0.5)
    head, hidden = on_device((head, hidden))
    head.weight.copy_(weight)
    whole, head.min_prior = head.log_probs(hidden, tokens), LEAST
    change, bound = (head.log_probs(hidden, tokens) - whole).abs(), head.pruning_error_bound(hidden, tokens)
    kept = (head.prior(hidden).softmax(-1) >= LEAST).sum(1).double().mean()
    actual = {"components kept": kept, "mean change": change.mean(), "largest change": change.max()}
    actual |= {"mean bound": bound.mean(), "largest bound": bound.max()}
    return {name: float(value) for name, value in actual.items()}


def tables(repeats: int) -> list[Table]:
    return [
        Table(f"a mixture of {COMPONENTS} softmaxes", [row for work in WORK for row in compare(work, repeats)]),
        Table(f"components of a peaked prior below {LEAST} left out: what scores change by, nats", [wrong_by()]),
    ]
