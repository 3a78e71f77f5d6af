"""Conditional noise-contrastive estimation: teach an energy to tell data from draws of the base after the same prompts.

With K negatives for each sequence of the data, u(x) = -E(x) the log-ratio that the energy claims,

    binary    -log s(u(x+) - log K) - sum_k log s(log K - u(x_k)),          s the logistic function
    ranking   -log [ exp u(x+) / (exp u(x+) + sum_k exp u(x_k)) ]

At the optimum of the binary form a(x) exp(-E(x)) is the distribution of the data, so log Z = 0; K = 1 is the plain loss
-log s(-E(x+)) - log s(E(x-)). The ranking form leaves E free by a constant for each prompt, so log Z is whatever it is
(Ma and Collins, 2018). Negatives from a `noise` that is not the base add log a(x) - log noise(x) to u(x).

The weights of the sampler's draws count: `Exhaustive` turns the sum over negatives into K times its expectation, and so the
gradient of the binary form into the exact one. What it leaves out: training the base, which is never moved here.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.draws import Draws, Sampler
from esscher.objective import Loss
from esscher.randomness import Rng
from esscher.samplers.ancestral import Ancestral
from esscher.space import Sequences, Space, concatenate, refuse_foreign
from esscher.target import Base, Tilted

Form = Literal["binary", "ranking"]


@dataclass(frozen=True)
class NoiseContrast:
    """The mean over sequences of the loss above; negatives are fresh draws of the base unless `sampler` has them stored.

    `prefixes` mixes prompts: each row keeps one of these many first tokens, chosen by chance among those that its own
    prompt has, and its point begins there. `noise` None means the base.
    """

    sampler: Sampler = field(default_factory=Ancestral)
    negatives: int = 1
    form: Form = "binary"
    prefixes: tuple[int, ...] = ()
    noise: Base | None = None

    def __post_init__(self) -> None:
        if self.negatives < 1:
            raise ValueError(f"Each sequence is told from at least 1 negative, not {self.negatives}.")
        if self.form not in get_args(Form):
            raise ValueError(f"Unknown form {self.form!r} of noise contrast; the known ones are {', '.join(get_args(Form))}.")
        if any(length < 0 for length in self.prefixes):
            raise ValueError(f"A prefix has 0 tokens or more: {self.prefixes}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        if len(data) == 0:
            raise ValueError("There is no sequence to learn from. Nothing was computed; give some data.")
        if self.prefixes:
            data = shorter_prompts(data, self.prefixes, target.space, rng=rng)
        refuse_foreign(data, target.space)
        noise = target.base if self.noise is None else self.noise
        drawn = self.sampler(Tilted(noise), data.prompts(), self.negatives, rng=rng)
        log_ratio = -target.energy(concatenate([data, drawn.x])).double()
        energies = -log_ratio.detach()
        if self.noise is not None:
            log_ratio = log_ratio + self._correction(target.base, self.noise, data, drawn)
        data_ratio, noise_ratio = log_ratio[: len(data)], log_ratio[len(data) :].view(len(data), -1)
        log_weight = drawn.log_weight.to(log_ratio.device) - math.log(noise_ratio.shape[1])  # that sums to 1 in expectation
        loss = self._binary if self.form == "binary" else self._ranking
        value = loss(data_ratio, noise_ratio, log_weight).mean()
        metrics = self._metrics(data_ratio.detach(), noise_ratio.detach(), log_weight.exp(), energies)
        return Loss(value, metrics, len(data))

    def _binary(
        self, data: Float[Tensor, "B"], noise: Float[Tensor, "B N"], log_weight: Float[Tensor, "B N"]
    ) -> Float[Tensor, "B"]:
        log_count = math.log(self.negatives)
        told = (log_weight.exp() * softplus(noise - log_count)).sum(-1)
        return softplus(log_count - data) + self.negatives * told

    def _ranking(
        self, data: Float[Tensor, "B"], noise: Float[Tensor, "B N"], log_weight: Float[Tensor, "B N"]
    ) -> Float[Tensor, "B"]:
        others = torch.logsumexp(noise + log_weight, -1) + math.log(self.negatives)
        return torch.logaddexp(data, others) - data

    @torch.no_grad()
    def _correction(self, base: Base, noise: Base, data: Sequences, drawn: Draws) -> Float[Tensor, "B"]:
        """log a(x) - log noise(x) of the data, then of the negatives."""
        both = concatenate([data, drawn.x])
        log_noise = torch.cat([noise.log_probs(data).double().sum(-1), drawn.log_base.view(-1).to(data.tokens.device)])
        return base.log_probs(both).double().sum(-1) - log_noise

    def _metrics(
        self, data: Float[Tensor, "B"], noise: Float[Tensor, "B N"], weight: Float[Tensor, "B N"], energies: Float[Tensor, "M"]
    ) -> dict[str, float]:
        """`accuracy` is that of telling data from noise at even odds; `log_z` the log of the mean Z over these prompts."""
        if self.form == "binary":
            right = ((data > 0).double() + (weight * (noise <= 0)).sum(-1)) / 2
        else:
            right = (weight * ((data[:, None] > noise).double() + (data[:, None] == noise).double() / 2)).sum(-1)
        log_z = torch.logsumexp((noise + weight.log()).view(-1), 0) - math.log(len(noise))
        negative = (weight * energies[len(data) :].view(noise.shape)).sum(-1)
        return {
            "accuracy": float(right.mean()),
            "energy_data": float(energies[: len(data)].mean()),
            "energy_noise": float(negative.mean()),
            "log_z": float(log_z),
        }


def shorter_prompts(x: Sequences, lengths: tuple[int, ...], space: Space, *, rng: Rng) -> Sequences:
    """The rows with prompts cut to one of `lengths` by chance, and the points that begin there; longer ones than a row's
    prompt are not considered, and a row with none left stays as it is."""
    choice = torch.tensor(sorted(set(lengths)), device=x.tokens.device)
    fits = (choice <= x.start[:, None]) & (choice < x.stop[:, None])
    pick = choice[rng.categorical(torch.where(fits, 0.0, -torch.inf).double())[:, 0]]
    start = torch.where(fits.any(-1), pick, x.start)
    stop = torch.minimum(x.stop, start + space.max_length)
    if space.eos is not None:
        column = torch.arange(x.tokens.shape[1], device=x.tokens.device)
        ends = (x.tokens == space.eos) & (column >= start[:, None]) & (column < stop[:, None])
        first = torch.where(ends, column, x.tokens.shape[1]).amin(-1) if ends.shape[1] else stop
        stop = torch.minimum(stop, first + 1)
    return Sequences(x.tokens, start, stop)
