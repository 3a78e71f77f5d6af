"""Decoders that choose among draws: one by chance, the one the target likes best, or the one that risks least.

Minimum risk (Kumar & Byrne 2004): with u(y, z) how good y is when z is right, the chosen y has the highest mean of u over the
draws z, each with its weight; the candidates are the draws themselves. Equal draws are one candidate.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.decoding.decoder import Decoded
from esscher.draws import Draws, Sampler
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences
from esscher.target import Tilted

Gain = Callable[[Sequences], Tensor]
"""u between all pairs of some points: `Sequences -> Float[Tensor, "K K"]`, the truth in the columns."""


@dataclass(frozen=True)
class Drawn:
    """A draw of the target by chance; the sampler's draws must carry no weights, as those of a pool do not."""

    sampler: Sampler

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> Decoded:
        draws = self.sampler(target, prompts, 1, rng=rng)
        if bool((draws.log_weight != 0).any()):
            raise ValueError("These draws are weighted, so one of them alone says nothing. Nothing was decoded; use a pool.")
        return _decoded(draws, torch.zeros(len(prompts), dtype=torch.long), draws.log_base)


@dataclass(frozen=True)
class Best:
    """The draw with the highest log a(x) / length^penalty - E(x), of so many draws of the base."""

    draws: int
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _check_draws(self.draws)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> Decoded:
        draws = Importance()(target, prompts, self.draws, rng=rng)
        length = draws.x.lengths.view(draws.log_base.shape).cpu()
        score = draws.log_base / length.double() ** self.length_penalty + draws.log_weight
        return _decoded(draws, score.argmax(1), score)


@dataclass(frozen=True)
class MinimumRisk:
    """The draw that is best on average if the truth is any of the draws; weighted draws count by their weight."""

    gain: Gain
    draws: int
    sampler: Sampler = field(default_factory=Importance)

    def __post_init__(self) -> None:
        _check_draws(self.draws)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> Decoded:
        draws = self.sampler(target, prompts, self.draws, rng=rng)
        share = torch.softmax(draws.log_weight, -1)
        score = torch.stack([self._expected(draws, number, share[number]) for number in range(len(prompts))])
        return _decoded(draws, score.argmax(1), score)

    def _expected(self, draws: Draws, prompt: int, share: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """The mean gain of each draw of a prompt."""
        x = draws.x.rows(slice(prompt * self.draws, (prompt + 1) * self.draws))
        keys: dict[tuple[int, ...], int] = {}
        which = torch.tensor([keys.setdefault(tuple(point), len(keys)) for point in x.points()])
        first = torch.tensor([which.tolist().index(number) for number in range(len(keys))])
        weight = torch.zeros(len(keys), dtype=share.dtype).index_add(0, which, share)
        return (self.gain(x.rows(first.to(x.tokens.device))).to(weight) @ weight)[which]


def _check_draws(draws: int) -> None:
    if draws < 1:
        raise ValueError(f"One is chosen among at least 1 draw, not {draws}. Nothing was decoded.")


def _decoded(draws: Draws, pick: Int[Tensor, "P"], score: Float[Tensor, "P N"]) -> Decoded:
    """The picked draw of each prompt."""
    prompts, count = draws.log_base.shape
    rows = torch.arange(prompts)
    x = draws.x.rows((rows * count + pick).to(draws.x.tokens.device))
    return Decoded(x, draws.log_base[rows, pick], score[rows, pick])
