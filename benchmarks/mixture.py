"""Time and memory of a mixture of 15 softmaxes, against its direct formulation.

    python benchmarks/mixture.py [--repeats 3] [--threads 1] [--json]

Forward and backward of a mean loss over 840 tokens, contexts of width 280, a vocabulary of 10,000: contexts, prior, weights
and biases all learning. The direct formulation makes all probabilities of all components and mixes them. `peaked` is the same
work with a prior as of a trained model whose logits have standard deviation 3, where components below a prior of 0.01 are
left out; the bound is what their scores can be wrong by. The sides take turns in this process. Seconds are the CPU's with one
thread, the clock's otherwise; the ratio is taken within a repeat. Memory is what the process gained at its peak over what it
had, vectors and weights themselves not counted, each side in a process of its own.
"""

import argparse
import json
import os
import platform
import sys
import time

import torch
from _turns import Run, faster, in_turns, peak, peak_elsewhere
from rich.console import Console
from torch import Tensor, nn

from esscher.heads.mixture import MixtureHead
from esscher.heads.softmax import mixture_score, softmax_score
from esscher.randomness import Seeded
from esscher.reports.tables import rich_table

ROWS, WIDTH, VOCAB, COMPONENTS, LEAST = 840, 280, 10_000, 15, 0.01
SPREADS = {"even": 0.3, "peaked": 3.0}


def ends(spread: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Contexts, logits of the prior, weights, biases, and tokens as frequent as by Zipf."""
    with Seeded(0).governs_torch():
        contexts, prior = torch.randn(ROWS, COMPONENTS, WIDTH).tanh_(), torch.randn(ROWS, COMPONENTS) * spread
        weight, bias = torch.empty(VOCAB, WIDTH).uniform_(-0.1, 0.1), torch.zeros(VOCAB)
        tokens = torch.multinomial(1 / torch.arange(1, VOCAB + 1), ROWS, replacement=True)
    return (*(one.requires_grad_() for one in (contexts, prior, weight, bias)), tokens)


def direct(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    every = (contexts.flatten(0, 1) @ weight.T + bias).softmax(-1).view(ROWS, COMPONENTS, VOCAB)
    mixed = (every * prior.softmax(-1)[..., None]).sum(1)
    return nn.functional.nll_loss(mixed.log(), tokens)


def ours(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    return -mixture_score(contexts, prior.log_softmax(-1), weight, bias, tokens).mean()


def fewer(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    kept = prior.masked_fill(prior.softmax(-1) < LEAST, -torch.inf)
    return -mixture_score(contexts, kept.log_softmax(-1), weight, bias, tokens).mean()


def single(contexts: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    return -softmax_score(contexts[:, 0], weight, bias, tokens).mean() + 0 * prior.sum()


SIDES = {"direct": direct, "mixture_score": ours, f"least_prior={LEAST}": fewer, "one softmax": single}
WORK = {"even": ("direct", "mixture_score", "one softmax"), "peaked": ("direct", "mixture_score", f"least_prior={LEAST}")}


def run_of(work: str, side: str) -> Run:
    *leaves, tokens = ends(SPREADS[work])

    def run() -> None:
        torch.autograd.grad(SIDES[side](*leaves, tokens), leaves)

    return run


def compare(work: str, repeats: int, threads: int) -> list[dict[str, object]]:
    print(work, file=sys.stderr, flush=True)
    sides = {side: run_of(work, side) for side in WORK[work]}
    seconds = in_turns(sides, repeats, time.process_time if threads == 1 else time.perf_counter)
    return [
        {"prior": work, **row, "megabytes": peak_elsewhere(__file__, threads, work, str(row["side"]))}
        for row in faster(seconds)
    ]


@torch.no_grad()
def wrong_by() -> dict[str, float]:
    """Nats: what leaving components out changes scores by, and the bound that the head tells; on the peaked prior."""
    _, _, weight, _, tokens = ends(SPREADS["peaked"])
    with Seeded(1).governs_torch():
        head = MixtureHead(VOCAB, WIDTH, COMPONENTS)
        hidden = torch.randn(ROWS, WIDTH)
        head.prior.weight.normal_(std=SPREADS["peaked"] / WIDTH**0.5)
    head.weight.copy_(weight)
    whole, head.least_prior = head.score(hidden, tokens), LEAST
    change, bound = (head.score(hidden, tokens) - whole).abs(), head.distance(hidden, tokens)
    kept = (head.prior(hidden).softmax(-1) >= LEAST).sum(1).double().mean()
    found = {"components kept": kept, "mean change": change.mean(), "largest change": change.max()}
    found |= {"mean bound": bound.mean(), "largest bound": bound.max()}
    return {name: round(float(value), 5) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--gain", nargs=2, metavar=("WORK", "SIDE"), help="only the megabytes of one side")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.gain:
        print(peak(run_of(*options.gain)))
        return
    rows = [row for work in WORK for row in compare(work, options.repeats, options.threads)]
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {options.threads} threads"
    Console(width=140).print(rich_table(f"mixture of {COMPONENTS} softmaxes ({machine})", rows))
    wrong = wrong_by()
    print(f"components below a prior of {LEAST} left out:", ", ".join(f"{name} {value}" for name, value in wrong.items()))
    if options.json:
        print(json.dumps({"machine": machine, "torch": torch.__version__, "rows": rows, "left out": wrong}))


if __name__ == "__main__":
    main()
