"""Scheduled sampling: the tokens before a prediction are now and then the model's own, and the data's is still the answer.

    "steps"     each own token is drawn given what stands before it, own tokens among it (Bengio et al. 2015)
    "passes"    own tokens are drawn all at once, given the data before them: one pass more (Mihaylova and Martins 2019)

The loss is -log q(x_k | the mixture before k) per token. Draws are not differentiated. Rows end where the data's do.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from esscher.bases.logits import LogitBase
from esscher.objective import Loss
from esscher.objectives.combine import Schedule, at_step
from esscher.objectives.likelihood import Likelihood, loss_of, tokens_of
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted

FORMS = ("steps", "passes")


@dataclass(frozen=True)
class ScheduledSampling:
    """Likelihood after tokens of which a `share`, by chance, are the model's own; while that is 0 it is `Likelihood` itself."""

    share: float | Schedule = 0.25
    form: str = "passes"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"No form of scheduled sampling named {self.form!r}. Choose from: {', '.join(FORMS)}.")
        if not callable(self.share) and not 0 <= self.share <= 1:
            raise ValueError(f"The share of own tokens lies in [0, 1], not {self.share}.")
        Likelihood(self.label_smoothing)  # refuses what it cannot be

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        share = at_step(self.share, step)
        if share == 0:
            return Likelihood(self.label_smoothing)(target, data, rng=rng, step=step)
        base, counted = target.base, data.counted
        if not isinstance(base, LogitBase):
            raise ValueError(
                f"A {type(base).__name__} has no `logits`, which scheduled sampling predicts the data from. Nothing was "
                f"computed; use a network base, or a model of Hugging Face."
            )
        own = rng.accept(torch.full(counted.shape, share, dtype=torch.float64, device=counted.device).log()) & counted
        with torch.no_grad():
            drawn = _in_one_pass(base, data, rng) if self.form == "passes" else _step_by_step(base, data, own, rng)
        mixed = torch.where(own, drawn, data.tokens)
        logits, answer = base.logits(Sequences(mixed, data.start, data.stop))[counted], data.tokens[counted]
        value = cross_entropy(logits, answer, label_smoothing=self.label_smoothing)
        nll = float(cross_entropy(logits.detach(), answer)) if self.label_smoothing else float(value.detach())
        return loss_of(base, value, {"nll": nll, "own": share}, tokens_of(data))


def _in_one_pass(base: LogitBase, data: Sequences, rng: Rng) -> Int[Tensor, "B T"]:
    """A token of the model for each of the data's, given the data before it."""
    logits, counted = base.logits(data), data.counted
    return data.tokens.masked_scatter(counted, rng.categorical(logits[counted])[:, 0])


def _step_by_step(base: LogitBase, data: Sequences, own: Tensor, rng: Rng) -> Int[Tensor, "B T"]:
    """A token of the model for each of the data's, given the mixture before it."""
    log_prob, state = base.begin(data.prompts())
    drawn, rows = data.tokens.clone(), torch.arange(len(data), device=own.device)
    for t in range(int(data.lengths.max())):
        place = (data.start + t).clamp(max=drawn.shape[1] - 1)
        inside = t < data.lengths
        found = rng.categorical(log_prob)[:, 0]
        drawn[rows[inside], place[inside]] = found[inside]
        if t + 1 < int(data.lengths.max()):
            token = torch.where(own[rows, place], found, data.tokens[rows, place])
            log_prob, state = base.advance(state, token)
    return drawn
