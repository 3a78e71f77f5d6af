"""Exact sums over all points of a hidden Markov model: its log Z under a tilt, moments of features, mean length.

The model is nondeterministic: a point belongs to many hidden paths. But hidden states and tokens written in turn,
z1 x1 z2 x2 ..., are the points of a deterministic automaton over V + S symbols (`paths`; hidden state z is symbol
V + z), and a feature of the point is a tally of that string (`on_paths`). So everything of `esscher.exact` serves:
sums over paths are sums over points, draws of paths without their hidden states are draws of points.

The conventions are those of `esscher.exact.tilting`; `hidden_family` adds prompts, after which the first hidden
state is known only by its posterior. Left out: the entropy of the points, which has no closed form (that of
`paths` is an upper bound, as it counts the hidden states too); enumerate (`esscher.exact.table`) or estimate it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.hidden_markov import HiddenMarkov
from esscher.exact import features
from esscher.exact.automaton import Automaton, Normalised
from esscher.exact.expectation import accumulate
from esscher.exact.features import Tally
from esscher.exact.tilting import Family, family
from esscher.space import Sequences, Space, empty_prompts, prompts_of, sequences


@dataclass(frozen=True)
class HiddenFamily:
    """A model and tallies, made by `hidden_family`; each method takes the tilting weights."""

    hidden: HiddenMarkov
    on_paths: Family

    def log_z(self, weights: Float[Tensor, "F"], prompts: Sequences | None = None) -> Float[Tensor, "P"]:
        """log E[exp <weights, features(x)>] after each prompt; differentiable, its gradient is the moments."""
        return torch.logsumexp(self._log_first(self.on_paths.model(weights), prompts), -1)

    @torch.no_grad()
    def moments(self, weights: Float[Tensor, "F"], prompts: Sequences | None = None) -> Float[Tensor, "P F"]:
        """The features' expectations under the tilted model after each prompt."""
        tilted = self.on_paths.model(weights)
        first = torch.softmax(self._log_first(tilted, prompts), -1)
        expected = accumulate(tilted, self.on_paths.value, self.on_paths.final)[-1]
        return first @ expected[:, tilted.starts(self._each_first())].T

    def _log_first(self, tilted: Normalised, prompts: Sequences | None) -> Float[Tensor, "P S"]:
        """log of the weight of all points after each prompt whose first hidden state is s."""
        beliefs = self.hidden.beliefs(empty_prompts(1) if prompts is None else prompts)
        return beliefs + tilted.log_z(self._each_first())

    def _each_first(self) -> Sequences:
        return prompts_of([[self.hidden.space.vocab_size + state] for state in range(self.hidden.states)])


def hidden_family(model: HiddenMarkov, tallies: Sequence[Tally]) -> HiddenFamily:
    """The exponential family of a hidden Markov model and tallies of its points."""
    return HiddenFamily(model, family(paths(model), [on_paths(tally, model) for tally in tallies]))


def mean_length(model: HiddenMarkov, prompts: Sequences | None = None) -> Float[Tensor, "P"]:
    """Expected tokens of a point, the end symbol included."""
    nothing = torch.zeros(1, dtype=torch.float64)
    return hidden_family(model, [features.length(model.space)]).moments(nothing, prompts)[:, 0]


def paths(model: HiddenMarkov) -> Automaton:
    """The distribution of hidden states and tokens in turn; a prompt of one hidden state is where the path begins.

    State 0 is the beginning, 1 + z is about to emit a token in z, 1 + S + z about to leave z.
    """
    count, vocab_size = model.states, model.space.vocab_size
    hidden = torch.arange(count)
    emit = torch.full((1 + 2 * count, vocab_size + count), -torch.inf, dtype=torch.float64)
    emit[0, vocab_size:] = model.initial
    emit[1 : 1 + count, :vocab_size] = model.emission
    emit[1 + count :, vocab_size:] = model.transition
    move = torch.arange(len(emit))[:, None].repeat(1, vocab_size + count)  # what has no probability leads nowhere new
    move[0, vocab_size:] = 1 + hidden
    move[1 : 1 + count, :vocab_size] = (1 + count + hidden)[:, None]
    move[1 + count :, vocab_size:] = 1 + hidden
    return Automaton(emit, move, _path_space(model))


def on_paths(tally: Tally, model: HiddenMarkov) -> Tally:
    """The tally of a path's tokens, its hidden states passed over."""
    if tally.space != model.space:
        raise ValueError(f"Feature {tally.name!r} is about {tally.space} and the model about {model.space}.")
    stay = torch.arange(len(tally.move))[:, None].expand(-1, model.states)
    value = torch.nn.functional.pad(tally.value, (0, model.states))
    return Tally(tally.name, _path_space(model), torch.cat([tally.move, stay], 1), value, tally.final)


def points_on(drawn: Sequences, model: HiddenMarkov) -> Sequences:
    """The points of paths: their tokens without the hidden states, and without prompts."""
    return sequences([[symbol for symbol in path if symbol < model.space.vocab_size] for path in drawn.points()])


def _path_space(model: HiddenMarkov) -> Space:
    return Space(model.space.vocab_size + model.states, 2 * model.space.max_length, model.space.eos)
