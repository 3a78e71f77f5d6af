"""Hidden Markov models: a base whose state is a posterior over hidden states, and its fit to token sequences.

A row of tokens is read from its prompt on: the first hidden state comes from `initial`, each emits one token by
`emission` and is followed by another by `transition`. S counts hidden states. The end symbol is a token like the
others, and its emission ends the point. What follows a prompt is conditioned on it.

The fit is Baum and Welch's (1970) expectation maximisation over whole rows, prompts among them, with a little
Dirichlet smoothing, so that nothing has probability 0. Sums over all points are in `esscher.bases.hidden_paths`.
Left out: hidden states with memory of their duration, and emissions other than tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.exact.partition import log_sum
from esscher.randomness import Rng
from esscher.space import Sequences, Space

THIN = 1e-250  # a sum of products below it may have lost terms to underflow
BLOCK = 2**21  # rows times positions times hidden states read at once: 16 megabytes of float64
GRAIN = 2**12  # different values of a random number for the first guess


@dataclass(frozen=True)
class HiddenMarkov:
    """Log-probabilities in float64: of the first hidden state, of the next one in each, of a token in each.

    `begin` and `advance` carry log p(hidden state of the next token | all tokens read). A token that no hidden
    state can emit tells nothing about them; as part of a prompt it is an error.
    """

    initial: Float[Tensor, "S"]
    transition: Float[Tensor, "S S"]
    emission: Float[Tensor, "S V"]
    space: Space

    def __post_init__(self) -> None:
        if self.emission.shape[1] != self.space.vocab_size:
            raise ValueError(f"The model emits {self.emission.shape[1]} tokens and its space has {self.space.vocab_size}.")
        for name in ("initial", "transition", "emission"):
            rows = getattr(self, name).detach()
            total = torch.logsumexp(rows, -1).exp().flatten().nan_to_num(nan=torch.inf)
            worst = int((total - 1).abs().argmax())
            if rows.dtype != torch.float64 or not abs(float(total[worst]) - 1) < 1e-9:
                raise ValueError(
                    f"The {name} probabilities of row {worst} are {rows.dtype} and sum to {float(total[worst]):.12g}. No base "
                    f"was made; give log-probabilities in float64 that sum to 1, as of torch.log_softmax(table.double(), -1)."
                )

    @property
    def states(self) -> int:
        """How many hidden states there are."""
        return len(self.initial)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B S"]]:
        belief = self.beliefs(prompts)
        return log_product(belief, self.emission), belief

    def advance(
        self, state: Float[Tensor, "B S"], token: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B S"]]:
        _, belief = self.read(state, token)
        return log_product(belief, self.emission), belief

    def select(self, state: Float[Tensor, "B S"], index: Int[Tensor, "K"]) -> Float[Tensor, "K S"]:
        return state[index]

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        belief, tokens = self.initial.expand(len(x), -1), _unpadded(x)
        columns = [torch.zeros(len(x), 0, dtype=belief.dtype, device=belief.device)]
        for t in range(tokens.shape[1]):
            log_prob, belief = self.read(belief, tokens[:, t])
            columns.append(log_prob[:, None])
        log_probs = torch.cat(columns, 1)
        _refuse_impossible(x, (log_probs == -torch.inf) & ~x.counted & x.inside, "prompts")
        return torch.where(x.counted, log_probs, 0.0)

    def beliefs(self, prompts: Sequences) -> Float[Tensor, "B S"]:
        """log p(hidden state of the first token of the point | prompt)."""
        belief, lost = self.initial.expand(len(prompts), -1), torch.zeros_like(prompts.tokens, dtype=torch.bool)
        for t in range(int(prompts.start.max()) if len(prompts) else 0):
            within = t < prompts.start
            log_prob, after = self.read(belief, torch.where(within, prompts.tokens[:, t], 0))
            belief = torch.where(within[:, None], after, belief)
            lost[:, t] = within & (log_prob == -torch.inf)
        _refuse_impossible(prompts, lost, "prompts")
        return belief

    def read(self, belief: Float[Tensor, "B S"], token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B"], Float[Tensor, "B S"]]:
        """The log-probability of a token, and what is believed of the hidden state that follows its own."""
        joint = belief + self.emission.T[token]
        log_prob = log_sum(joint.clone())
        possible = (log_prob > -torch.inf)[:, None]
        here = torch.where(possible, joint - torch.where(possible, log_prob[:, None], 0.0), belief)
        return log_prob, log_product(here, self.transition)


class Smoothed(NamedTuple):
    """Each token of each row seen from both sides; whatever in padding.

    `before` is log p(hidden state | tokens before), `filtered` the same given this token too; `outlook` is what
    this token and all after it add to `before`, so that their sum is the posterior given the whole row.
    """

    log_prob: Float[Tensor, "B T"]
    before: Float[Tensor, "B T S"]
    filtered: Float[Tensor, "B T S"]
    outlook: Float[Tensor, "B T S"]


def hidden_posterior(model: HiddenMarkov, x: Sequences) -> Float[Tensor, "B T S"]:
    """log p(hidden state of each token | the whole row, prompt and point); 0 in padding."""
    seen = smooth(model, x)
    _refuse_impossible(x, (seen.log_prob == -torch.inf) & x.inside, "rows")
    return torch.where(x.inside[..., None], seen.before + seen.outlook, 0.0)


def smooth(model: HiddenMarkov, x: Sequences) -> Smoothed:
    """Read rows forward, then backward: sums over all hidden paths."""
    belief, tokens, inside = model.initial.expand(len(x), -1), _unpadded(x), x.inside
    before = belief.new_empty(*tokens.shape, model.states)
    log_prob = before.new_empty(tokens.shape)
    for t in range(tokens.shape[1]):
        before[:, t] = belief
        log_prob[:, t], belief = model.read(belief, tokens[:, t])
    gain = model.emission.T[tokens] - log_prob[..., None]
    outlook, back = gain.clone(), model.transition.T.contiguous()
    for t in range(tokens.shape[1] - 2, -1, -1):
        onward = log_product(outlook[:, t + 1], back)
        outlook[:, t] += torch.where(inside[:, t + 1, None], onward, 0.0)
    return Smoothed(log_prob, before, before + gain, outlook)


class Fit(NamedTuple):
    """A fitted model, and how the fit went: entry k is about the model after k rounds, so the last about this one.

    `objective` is log-likelihood plus log prior, in nats over all tokens; no round lowers it.
    """

    model: HiddenMarkov
    log_likelihood: list[float]
    objective: list[float]


class _Counts(NamedTuple):
    """Expected counts of first states, of steps and of emissions, and the log-likelihood of the rows."""

    initial: Float[Tensor, "S"]
    transition: Float[Tensor, "S S"]
    emission: Float[Tensor, "S V"]
    log_likelihood: float


def fit_hidden_markov(
    data: Sequences,
    space: Space,
    states: int,
    *,
    rng: Rng,
    iterations: int = 100,
    tolerance: float = 1e-5,
    smoothing: float = 0.01,
) -> Fit:
    """Fit a model to whole rows, from a random first guess, until a round gains less than `tolerance` nats a token.

    `smoothing` is added to every expected count. The likelihood has several local optima: try several `rng`.
    """
    tokens = _check_data(data, space, states, smoothing)
    blocks, model = list(_blocks(data, states)), _first_guess(data, space, states, rng)
    log_likelihood: list[float] = []
    objective: list[float] = []
    while True:
        counts = _expect(model, blocks)
        log_prior = smoothing * float(model.initial.sum() + model.transition.sum() + model.emission.sum())
        log_likelihood.append(counts.log_likelihood)
        objective.append(counts.log_likelihood + log_prior)
        settled = len(objective) > 1 and objective[-1] - objective[-2] < tolerance * tokens
        if settled or len(objective) > iterations:
            return Fit(model, log_likelihood, objective)
        initial, transition, emission = ((table + smoothing).log() for table in counts[:3])
        model = _normalised(initial, transition, emission, space)


def _check_data(data: Sequences, space: Space, states: int, smoothing: float) -> int:
    """How many tokens the rows have; an error where nothing can be learnt from them."""
    used = data.tokens[data.inside]
    if not len(used):
        raise ValueError(f"There is nothing to fit: the {len(data)} sequences have no token. Give sequences with points.")
    if int(used.max()) >= space.vocab_size or int(used.min()) < 0:
        wrong = int(used.max()) if int(used.max()) >= space.vocab_size else int(used.min())
        raise ValueError(f"The data have token {wrong} and the space only {space.vocab_size}: another tokenizer?")
    if not 1 <= states <= len(used):
        raise ValueError(
            f"{states} hidden states cannot be told apart by {len(used)} tokens: a model has at least 1 and at most as many as "
            f"there are tokens. Nothing was fitted; choose fewer hidden states, or give more data."
        )
    if not smoothing > 0:
        raise ValueError(f"The smoothing is a count above 0, so that nothing has probability 0; it was {smoothing}.")
    return len(used)


def _first_guess(data: Sequences, space: Space, states: int, rng: Rng) -> HiddenMarkov:
    """Random probabilities, uniform over all there are; those of tokens are tied to how frequent the tokens are."""

    def random(rows: int, columns: int) -> Float[Tensor, "{rows} {columns}"]:
        place = rng.categorical(torch.zeros(1, GRAIN), rows * columns).view(rows, columns)
        return (-((place.double() + 0.5) / GRAIN).log()).log()

    frequency = torch.bincount(data.tokens[data.inside], minlength=space.vocab_size).double() + 1
    return _normalised(random(1, states)[0], random(states, states), random(states, space.vocab_size) + frequency.log(), space)


def _normalised(
    initial: Float[Tensor, "S"], transition: Float[Tensor, "S S"], emission: Float[Tensor, "S V"], space: Space
) -> HiddenMarkov:
    first, onward, emitted = (torch.log_softmax(table, -1) for table in (initial, transition, emission))
    return HiddenMarkov(first, onward, emitted, space)


def _blocks(data: Sequences, states: int) -> Iterator[Sequences]:
    """The rows that have tokens, by length, in blocks of bounded size without needless padding."""
    order = data.stop.argsort(stable=True)
    order = order[data.stop[order] > 0]
    rows = max(1, BLOCK // (int(data.stop.max()) * states))
    for first in range(0, len(order), rows):
        block = data.rows(order[first : first + rows])
        yield Sequences(block.tokens[:, : int(block.stop.max())], block.start, block.stop)


@torch.no_grad()
def _expect(model: HiddenMarkov, blocks: list[Sequences]) -> _Counts:
    """Expected counts over all hidden paths of all rows."""
    initial, transition, emission = (torch.zeros_like(table) for table in (model.initial, model.transition, model.emission))
    log_likelihood = 0.0
    for x in blocks:
        seen, inside = smooth(model, x), x.inside
        posterior = (seen.before + seen.outlook).exp()
        log_likelihood += float(seen.log_prob[inside].sum())
        initial += posterior[:, 0].sum(0)
        emission.T.index_add_(0, x.tokens[inside], posterior[inside])
        step = inside[:, 1:]
        transition += seen.filtered[:, :-1][step].exp().T @ seen.outlook[:, 1:][step].exp()
    return _Counts(initial, transition * model.transition.exp(), emission, log_likelihood)


def log_product(a: Float[Tensor, "B S"], b: Float[Tensor, "S C"]) -> Float[Tensor, "B C"]:
    """log of exp(a) @ exp(b): a matrix product, and a sum term by term for the entries that would underflow."""
    high_a, high_b = a.detach().amax(1, keepdim=True).clamp(min=-1e300), b.detach().amax(0, keepdim=True).clamp(min=-1e300)
    total = (a - high_a).exp() @ (b - high_b).exp()
    thin = total < THIN
    log_total = torch.where(thin, 1.0, total).log() + high_a + high_b
    if bool(thin.any()):
        row, column = thin.nonzero(as_tuple=True)
        log_total = log_total.index_put((row, column), log_sum(a[row] + b.T[column]))
    return log_total


def _unpadded(x: Sequences) -> Int[Tensor, "B T"]:
    """The tokens; padding becomes token 0, whatever it held."""
    return torch.where(x.inside, x.tokens, 0)


def _refuse_impossible(x: Sequences, lost: Bool[Tensor, "B T"], what: str) -> None:
    if bool(lost.any()):
        row, place = lost.nonzero()[0].tolist()
        raise ValueError(
            f"{int(lost.any(1).sum())} of {len(x)} {what} have probability 0, so nothing is known after them: first row {row}, "
            f"where no hidden state can emit token {int(x.tokens[row, place])} at place {place}. Nothing was computed; drop "
            f"these {what}, or fit the model with smoothing."
        )
