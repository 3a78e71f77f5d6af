"""Test sequences scored once, and the weights of the draws after their prompts: what every way of measuring starts from.

Prompts are matched by their tokens, not by their place. C is the number of different ones, the *contexts*.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.estimators.replicates import check_weights
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Scored:
    """log a(x) and -E(x) of every test sequence, its context, and the draws of every context.

    Every context has as many rows of draws (`runs`) as the one that has fewest; a prompt that is repeated gains none.
    """

    log_base: Float[Tensor, "B"]
    log_weight: Float[Tensor, "B"]
    context: Int[Tensor, "B"]
    drawn: Float[Tensor, "C D"]  # log weights, D = runs times draws
    runs: int
    independent: bool

    @property
    def contexts(self) -> int:
        return len(self.drawn)

    @property
    def surprise(self) -> Float[Tensor, "B"]:
        """-log a(x) + E(x), to which log Z is to be added."""
        return -self.log_base - self.log_weight


def scored(target: Tilted, x: Sequences, draws: Draws) -> Scored:
    """The test sequences `x` with the draws of their prompts, in any order; the two sets of prompts must agree."""
    draws.log_z()
    check_weights(draws)
    context, of_draws = _contexts(x, draws)
    rows, order = of_draws.bincount(), of_draws.argsort(stable=True)
    runs, (p, n) = int(rows.min()), draws.log_weight.shape
    place = torch.arange(p) - (rows.cumsum(0) - rows)[of_draws[order]]  # which run of its prompt
    drawn = draws.log_weight.detach().double().cpu()[order[place < runs]].view(len(rows), runs * n)
    return Scored(log_prob(target.base, x), log_weight(target, x), context, drawn, runs, draws.independent)


def _contexts(x: Sequences, draws: Draws) -> tuple[Int[Tensor, "B"], Int[Tensor, "P"]]:
    """Numbers for the prompts of the test sequences and of the draws."""
    wanted = x.prompt_names()
    given = draws.prompts().prompt_names()
    number = {name: place for place, name in enumerate(dict.fromkeys(given))}
    missing = [name for name in wanted if name not in number]
    unused = set(given) - set(wanted)
    if missing or unused:
        raise ValueError(
            f"{len(missing)} of {len(wanted)} test sequences have a prompt without draws, and {len(unused)} prompts have draws "
            f"but no test sequence. Nothing was measured; draw with `x.prompts()` of the test set."
        )
    return torch.tensor([number[name] for name in wanted]), torch.tensor([number[name] for name in given])
