"""Hidden Markov models: a base whose state is the posterior over hidden states, its fit, and its exact quantities.

The model has distributions `initial`, `transition` and `emission`; S counts hidden states. A row is read from its prompt on;
the end symbol is a token like the others. Alternating sequences z1 x1 z2 x2 ... of hidden states and tokens are the points of
an automaton over V + S symbols (`path_automaton`; z is symbol V + z), so sums over points are sums over paths by
`esscher.exact`. Left out: hidden states with durations, and the entropy of points, which has no closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.bases.ngram import check_tokens
from esscher.core.device import has_float64
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.exact.automaton import Automaton, NormalisedAutomaton
from esscher.exact.dynamic_programming import backward_expectations, safe_logsumexp
from esscher.exact.exponential_family import ExponentialFamily, exponential_family
from esscher.exact.features import AutomatonFeature

UNDERFLOW = 1e-250  # a sum of products below it may lack terms that underflowed
BLOCK_ELEMENTS = 2**21  # rows times positions times hidden states of a block: 16 megabytes of float64
GRAIN = 2**12  # different values of a random number of the initial model


@dataclass(frozen=True)
class HiddenMarkov:
    """Log-probabilities in float64 of the first hidden state, of the next hidden state and of a token given the hidden state.

    The state of `begin` and `advance` is log p(hidden state of the next token | all tokens read). A token that no hidden state
    can emit leaves it unchanged; in a prompt it is an error.
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
            exact = rows.dtype == torch.float64
            if not (exact or not has_float64(rows.device)) or not abs(float(total[worst]) - 1) < (1e-9 if exact else 1e-5):
                raise ValueError(
                    f"The {name} probabilities of row {worst} are {rows.dtype} and sum to {float(total[worst]):.12g}. No base "
                    f"was made; give log-probabilities in float64 that sum to 1, as of torch.log_softmax(table.double(), -1)."
                )

    @property
    def states(self) -> int:
        return len(self.initial)

    @property
    def drops_tokens(self) -> bool:
        """Whether some hidden state never emits some token, so that tokens may have probability 0."""
        return bool((self.emission == -torch.inf).any())

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B S"]]:
        belief = self.beliefs(prompts)
        return log_matmul(belief, self.emission), belief

    def advance(
        self, state: Float[Tensor, "B S"], token: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B V"], Float[Tensor, "B S"]]:
        _, belief = self.read(state, token)
        return log_matmul(belief, self.emission), belief

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
        """The log-probability of a token, and log p(next hidden state | this token and all before it)."""
        joint = belief + self.emission.T[token]
        log_prob = safe_logsumexp(joint.clone())
        possible = (log_prob > -torch.inf)[:, None]
        filtered = torch.where(possible, joint - torch.where(possible, log_prob[:, None], 0.0), belief)
        return log_prob, log_matmul(filtered, self.transition)


class ForwardBackward(NamedTuple):
    """log p(hidden state | tokens before), the same given this token, too (`filtered`), and the backward sums; arbitrary in
    padding. `before + log_backward` is the log-posterior given the whole row."""

    log_prob: Float[Tensor, "B T"]
    before: Float[Tensor, "B T S"]
    filtered: Float[Tensor, "B T S"]
    log_backward: Float[Tensor, "B T S"]


def hidden_posterior(model: HiddenMarkov, x: Sequences) -> Float[Tensor, "B T S"]:
    """log p(hidden state of each token | the whole row, prompt and point); 0 in padding."""
    sums = forward_backward(model, x)
    _refuse_impossible(x, (sums.log_prob == -torch.inf) & x.inside, "rows")
    return torch.where(x.inside[..., None], sums.before + sums.log_backward, 0.0)


def forward_backward(model: HiddenMarkov, x: Sequences) -> ForwardBackward:
    """The forward-backward algorithm: sums over all hidden paths."""
    belief, tokens, inside = model.initial.expand(len(x), -1), _unpadded(x), x.inside
    before = belief.new_empty(*tokens.shape, model.states)
    log_prob = before.new_empty(tokens.shape)
    for t in range(tokens.shape[1]):
        before[:, t] = belief
        log_prob[:, t], belief = model.read(belief, tokens[:, t])
    gain = model.emission.T[tokens] - log_prob[..., None]
    log_backward, back = gain.clone(), model.transition.T.contiguous()
    for t in range(tokens.shape[1] - 2, -1, -1):
        rest = log_matmul(log_backward[:, t + 1], back)
        log_backward[:, t] += torch.where(inside[:, t + 1, None], rest, 0.0)
    return ForwardBackward(log_prob, before, before + gain, log_backward)


class HiddenMarkovFit(NamedTuple):
    """A fitted model, and the history of log-likelihood and objective (with the log prior) in nats, after k iterations each."""

    model: HiddenMarkov
    log_likelihood: list[float]
    objective: list[float]


def fit_hidden_markov(
    data: Sequences,
    space: Space,
    states: int,
    *,
    rng: Rng,
    iterations: int = 100,
    tolerance: float = 1e-5,
    smoothing: float = 0.01,
) -> HiddenMarkovFit:
    """Fit a model to whole rows by expectation maximisation (Baum and Welch, 1970), from a random initial model, until an
    iteration gains less than `tolerance` nats a token. `smoothing` is added to every expected count. The likelihood has several
    local optima: try several `rng`."""
    tokens = len(check_tokens(data, space, data.inside))
    if not 1 <= states <= tokens:
        raise ValueError(
            f"{states} hidden states cannot be fitted to {tokens} tokens: a model has at least 1 and at most as many as there "
            f"are tokens. Nothing was fitted; choose fewer hidden states, or give more data."
        )
    if not smoothing > 0:
        raise ValueError(f"smoothing is a count above 0, so that no probability is 0, not {smoothing}. Nothing was fitted.")
    order = data.stop.argsort(stable=True)
    by_length = data.rows(order[data.stop[order] > 0])
    at_once = max(1, BLOCK_ELEMENTS // (int(data.stop.max()) * states))
    blocks = [block.without_padding() for block in by_length.split(at_once)]
    model = _random_init(data, space, states, rng)
    log_likelihood: list[float] = []
    objective: list[float] = []
    while True:
        counts, total = _expected_counts(model, blocks)
        log_prior = smoothing * float(model.initial.sum() + model.transition.sum() + model.emission.sum())
        log_likelihood.append(total)
        objective.append(total + log_prior)
        converged = len(objective) > 1 and objective[-1] - objective[-2] < tolerance * tokens
        if converged or len(objective) > iterations:
            return HiddenMarkovFit(model, log_likelihood, objective)
        model = _normalised([(table + smoothing).log() for table in counts], space)


def _random_init(data: Sequences, space: Space, states: int, rng: Rng) -> HiddenMarkov:
    """Probabilities uniform over the simplex; those of tokens are multiplied by the frequencies of the tokens."""

    def random(rows: int, columns: int) -> Float[Tensor, "{rows} {columns}"]:
        place = rng.categorical(torch.zeros(1, GRAIN), rows * columns).view(rows, columns)
        return (-((place.double() + 0.5) / GRAIN).log()).log()

    frequency = torch.bincount(data.tokens[data.inside], minlength=space.vocab_size).double() + 1
    tables = [random(1, states)[0], random(states, states), random(states, space.vocab_size) + frequency.log()]
    return _normalised(tables, space)


def _normalised(tables: Sequence[Float[Tensor, "..."]], space: Space) -> HiddenMarkov:
    initial, transition, emission = (torch.log_softmax(table, -1) for table in tables)
    return HiddenMarkov(initial, transition, emission, space)


@torch.no_grad()
def _expected_counts(model: HiddenMarkov, blocks: list[Sequences]) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
    """Expected counts of first states, transitions and emissions over all hidden paths; the log-likelihood of the rows."""
    initial, transition, emission = (torch.zeros_like(table) for table in (model.initial, model.transition, model.emission))
    log_likelihood = 0.0
    for x in blocks:
        sums, inside = forward_backward(model, x), x.inside
        posterior = (sums.before + sums.log_backward).exp()
        log_likelihood += float(sums.log_prob[inside].sum())
        initial += posterior[:, 0].sum(0)
        emission.T.index_add_(0, x.tokens[inside], posterior[inside])
        step = inside[:, 1:]
        transition += sums.filtered[:, :-1][step].exp().T @ sums.log_backward[:, 1:][step].exp()
    return (initial, transition * model.transition.exp(), emission), log_likelihood


def log_matmul(a: Float[Tensor, "B S"], b: Float[Tensor, "S C"]) -> Float[Tensor, "B C"]:
    """log of exp(a) @ exp(b): a matrix product, and logsumexp for the entries that would underflow."""
    least = torch.finfo(a.dtype).min / 4
    high_a, high_b = a.detach().amax(1, keepdim=True).clamp(min=least), b.detach().amax(0, keepdim=True).clamp(min=least)
    total = (a - high_a).exp() @ (b - high_b).exp()
    underflow = total < UNDERFLOW
    log_total = torch.where(underflow, 1.0, total).log() + high_a + high_b
    if bool(underflow.any()):
        row, column = underflow.nonzero(as_tuple=True)
        log_total = log_total.index_put((row, column), safe_logsumexp(a[row] + b.T[column]))
    return log_total


def _unpadded(x: Sequences) -> Int[Tensor, "B T"]:
    """The tokens, with token 0 in padding."""
    return torch.where(x.inside, x.tokens, 0)


def _refuse_impossible(x: Sequences, lost: Bool[Tensor, "B T"], what: str) -> None:
    if bool(lost.any()):
        row, place = lost.nonzero()[0].tolist()
        raise ValueError(
            f"{int(lost.any(1).sum())} of {len(x)} {what} have probability 0, first row {row}: no hidden state can emit token "
            f"{int(x.tokens[row, place])} at position {place}. Nothing was computed; drop these {what}, or fit the model with "
            f"smoothing."
        )


@dataclass(frozen=True)
class HiddenMarkovFamily:
    """The exponential family of a model and features, made by `hidden_markov_family`; methods take the tilting weights."""

    hidden: HiddenMarkov
    path_family: ExponentialFamily

    def log_z(self, weights: Float[Tensor, "F"], prompts: Sequences | None = None) -> Float[Tensor, "P"]:
        """log E[exp <weights, features(x)>] after each prompt; differentiable, its gradient is the moments."""
        return torch.logsumexp(self._log_first_state(self.path_family.model(weights), prompts), -1)

    @torch.no_grad()
    def moments(self, weights: Float[Tensor, "F"], prompts: Sequences | None = None) -> Float[Tensor, "P F"]:
        """The features' expectations under the tilted model after each prompt."""
        tilted = self.path_family.model(weights)
        first = torch.softmax(self._log_first_state(tilted, prompts), -1)
        expected = backward_expectations(tilted, self.path_family.value, self.path_family.final)[-1]
        return first @ expected[:, tilted.start_states(self._first_state_prompts())].T

    def _log_first_state(self, tilted: NormalisedAutomaton, prompts: Sequences | None) -> Float[Tensor, "P S"]:
        """The log-weight of all points after each prompt by their first hidden state."""
        beliefs = self.hidden.beliefs(empty_prompts(1) if prompts is None else prompts)
        return beliefs + tilted.log_z(self._first_state_prompts())

    def _first_state_prompts(self) -> Sequences:
        return prompts_of([[self.hidden.space.vocab_size + state] for state in range(self.hidden.states)])


def hidden_markov_family(model: HiddenMarkov, features: Sequence[AutomatonFeature]) -> HiddenMarkovFamily:
    """The exponential family of a hidden Markov model and features of its points."""
    lifted = [lift_to_paths(feature, model) for feature in features]
    return HiddenMarkovFamily(model, exponential_family(path_automaton(model), lifted))


def path_automaton(model: HiddenMarkov) -> Automaton:
    """The distribution of alternating hidden states and tokens; a prompt of one hidden state is the first one. State 0 is the
    start, state 1 + z emits a token in z, state 1 + S + z leaves z."""
    count, vocab_size = model.states, model.space.vocab_size
    hidden = torch.arange(count)
    log_emission = torch.full((1 + 2 * count, vocab_size + count), -torch.inf, dtype=torch.float64)
    log_emission[0, vocab_size:] = model.initial
    log_emission[1 : 1 + count, :vocab_size] = model.emission
    log_emission[1 + count :, vocab_size:] = model.transition
    next_state = torch.arange(len(log_emission))[:, None].repeat(1, vocab_size + count)  # symbols of probability 0 stay
    next_state[0, vocab_size:] = 1 + hidden
    next_state[1 : 1 + count, :vocab_size] = (1 + count + hidden)[:, None]
    next_state[1 + count :, vocab_size:] = 1 + hidden
    return Automaton(log_emission, next_state, _path_space(model))


def lift_to_paths(feature: AutomatonFeature, model: HiddenMarkov) -> AutomatonFeature:
    """The feature of a path's tokens; it ignores the hidden states."""
    if feature.space != model.space:
        raise ValueError(f"Feature {feature.name!r} is about {feature.space}, the model about {model.space}. Nothing was made.")
    stay = torch.arange(len(feature.next_state))[:, None].expand(-1, model.states)
    value = torch.nn.functional.pad(feature.value, (0, model.states))
    return AutomatonFeature(feature.name, _path_space(model), torch.cat([feature.next_state, stay], 1), value, feature.final)


def drop_hidden_states(drawn: Sequences, model: HiddenMarkov) -> Sequences:
    """The points of drawn paths: their tokens without the hidden states, and without prompts."""
    return sequences([[symbol for symbol in path if symbol < model.space.vocab_size] for path in drawn.points()])


def _path_space(model: HiddenMarkov) -> Space:
    return Space(model.space.vocab_size + model.states, 2 * model.space.max_length, model.space.eos)
