"""Every head on every network: gradients against those of all logits, draws, wrong heads; laws: tests/laws."""

import math
from dataclasses import fields
from functools import partial

import pytest
import torch
from docstring_parser.attrdoc import AttributeDocstrings
from heads_on_networks import CASES, DEEPER, ENDING, FAST, FIXED, HEADS, PROMPTS, base_of, config_of
from marks import slow, slow_except
from torch.nn.functional import linear

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.heads import adaptive, mixture
from esscher.heads.adaptive import AdaptiveSoftmax
from esscher.heads.chunked_log_softmax import mixture_log_probs
from esscher.heads.head import SoftmaxHead, scatter_scored
from esscher.heads.mixture import MixtureHead
from esscher.networks.registry import NETWORKS
from esscher.samplers.ancestral import Ancestral, draw
from esscher.testing import assert_draws_follow, check_base, every_outcome
from esscher.testing.laws import assert_equal


def check_scores(base):
    """Scores are those of the normalised logits; and, for any incoming gradient, the gradients of all weights."""
    x = enumerate_points(base.space, prompts_of(PROMPTS))
    actual, logits = base.log_probs(x), base.logits(x)
    expected = torch.where(x.counted, logits.log_softmax(-1).gather(2, x.tokens[..., None])[..., 0], 0.0)
    assert_equal(actual.detach(), expected.detach(), 1e-12, "scores must be the normalised logits")
    inputs = torch.linspace(-1, 2, actual.numel(), dtype=torch.float64).view_as(actual)
    names, weights = zip(*base.named_parameters(), strict=True)
    slopes, right = (torch.autograd.grad(item, weights, inputs, allow_unused=True) for item in (actual, expected))
    for name, slope, other in zip(names, slopes, right, strict=True):
        assert slope is not None, f"scores must give a gradient of {name}"
        assert_equal(
            slope, other, 1e-9 * max(1.0, float(other.abs().max())), f"the gradient of {name} must be that of the logits"
        )


def check_levels(base):
    """Scores beside levels are the scores; levels are logsumexps of the logits, and so are their gradients."""
    x = enumerate_points(base.space, prompts_of(PROMPTS))
    (log_probs, logsumexp), logits = log_probs_and_logsumexp(base, x), base.logits(x)
    assert_equal(log_probs.detach(), base.log_probs(x).detach(), 1e-12, "scores beside levels must be the scores")
    expected = torch.where(x.counted, logits.logsumexp(-1), 0.0)
    assert_equal(logsumexp.detach(), expected.detach(), 1e-12, "levels must be those of the logits")
    inputs = torch.linspace(-1, 2, logsumexp.numel(), dtype=torch.float64).view_as(logsumexp)
    weights = list(base.parameters())
    drawn = torch.where(x.counted, logits.gather(2, x.tokens[..., None])[..., 0] - expected, 0.0)
    actual, right = (
        torch.autograd.grad([item, other], weights, [inputs, inputs.flip(0)], allow_unused=True)
        for item, other in ((log_probs, logsumexp), (drawn, expected))
    )
    for slope, other in zip(actual, right, strict=True):
        assert_equal(slope, other, 1e-9 * max(1.0, float(other.abs().max())), "gradients of levels must be those of the logits")


@pytest.mark.parametrize("case", [*slow_except(FAST, CASES), "pixelcnn++", "pixelcnn++, channels"])
def test_scores_and_gradients_are_those_of_all_logits(case):
    base = base_of(CASES[case] if case in CASES else DEEPER[case]).double()
    check_scores(base)
    check_levels(base)


def test_settings_travel_as_dictionaries():
    for config in CASES.values():
        assert NETWORKS.from_dict(NETWORKS.to_dict(config)) == config


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_setting_has_a_help_text(kind):
    """A string after the field, in the class or in one that it inherits from: the help of `esscher train --base.kind`."""
    config = NETWORKS[kind].config_class
    documented = {name for part in config.__mro__[:-1] for name in AttributeDocstrings().get_attr_docs(part)}
    assert {field.name for field in fields(config)} <= documented


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "network", ["gru", "transformer, learned", *map(slow, ("awd-lstm", "enas", "trellisnet", "full, post-norm"))]
)
def test_draws_over_every_outcome(network, head):
    """No statistics: the outcomes of the dice are all the points, each once and with the probability of its score."""
    space = Space(4, 2, eos=0)
    base, prompts = base_of(config_of(network, head, tied=True), space).double(), prompts_of([[2]])
    runs = list(every_outcome(lambda rng: draw(base, prompts, 1, rng=rng)))
    assert len({tuple(x.tokens[0, : int(x.stop)].tolist()) for _, (x, _) in runs}) == len(runs) == 1 + 3 * 4
    for probability, (x, log_prob) in runs:
        assert math.log(probability) == pytest.approx(float(log_prob), abs=1e-12)
        assert torch.allclose(base.log_probs(x).sum(), log_prob, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("network", "space"), [("gru", FIXED), ("transformer, rotary", ENDING)], ids=["gru", "transformer"])
def test_draws_follow_the_base_and_know_their_scores(network, space, head):
    """False-alarm rate 1e-6 for each of the eight."""
    base = base_of(config_of(network, head, tied=False), space)
    prompts = prompts_of([([], [3], [2, 1, 3])[row % 3] for row in range(600)])
    draws = Ancestral()(Tilted(base), prompts, 8, rng=SeededRng(2, network))
    assert_draws_follow(Tilted(base), prompts, draws)
    assert torch.allclose(draws.log_base.view(-1), base.log_probs(draws.x).double().sum(-1), atol=1e-4)


def unbiased_clusters(self, steps):
    return partial(adaptive._logits, clusters=[part._replace(bias=0 * part.bias) for part in self._parts()])


def cluster_alone(self, tails, found, hidden, tokens):
    """The score of a rare token is that of its cluster."""
    return found


def unbiased_mixture(self, steps):
    return lambda hidden: mixture._logits(self._contexts(hidden, None), self._weight, None, self.kind, self.floor)


def likeliest_context(self, steps):
    def logits(hidden):
        vectors, prior = self._contexts(hidden, None)
        return linear(vectors[torch.arange(len(hidden)), prior.argmax(-1)], self._weight, self.bias)

    return logits


def scored_by(change):
    """The score of a mixture of softmaxes whose contexts and log-priors are changed."""

    def log_probs(self, hidden, tokens):
        asked = tokens >= 0
        vectors, prior = self._contexts(hidden[asked], None)
        return scatter_scored(
            mixture_log_probs(*change(vectors, prior.log_softmax(-1)), self._weight, self.bias, tokens[asked]), asked
        )

    return log_probs


SUMMED, STEPPED, SCORED = "must sum to 1", "stepping must equal scoring", "scores must be the normalised logits"
WRONG = {  # the head, what is replaced and by what; what the laws say of it, and the check of scores
    "softmax, steps without bias": (
        "softmax", SoftmaxHead, "logits_fn", lambda self, steps: partial(linear, weight=self._weight), STEPPED, None,
    ),
    "adaptive, steps without bias": ("adaptive", AdaptiveSoftmax, "logits_fn", unbiased_clusters, STEPPED, None),
    "adaptive, the cluster alone": ("adaptive", AdaptiveSoftmax, "_add_cluster_log_probs", cluster_alone, SUMMED, SCORED),
    "softmaxes, steps without bias": ("softmaxes", MixtureHead, "logits_fn", unbiased_mixture, STEPPED, None),
    "softmaxes, one is skipped": (
        "softmaxes", MixtureHead, "log_probs", scored_by(lambda vectors, prior: (vectors[:, 1:], prior[:, 1:])), SUMMED, SCORED,
    ),
    "softmaxes, the others for one": (
        "softmaxes", MixtureHead, "log_probs",
        scored_by(lambda vectors, prior: (vectors[:, 1:], prior[:, 1:].log_softmax(-1))), STEPPED, SCORED,
    ),
    "softmaxes, priors do not learn": (
        "softmaxes", MixtureHead, "log_probs", scored_by(lambda vectors, prior: (vectors, prior.detach())), None,
        "the gradient of network",
    ),
    "contexts, steps without bias": ("contexts", MixtureHead, "logits_fn", unbiased_mixture, STEPPED, None),
    "contexts, steps by the likeliest": ("contexts", MixtureHead, "logits_fn", likeliest_context, STEPPED, None),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("network", ["lstm, one-hot", "full, pre-norm"])
def test_wrong_heads_are_caught(network, wrong, monkeypatch):
    head, place, name, other, law, said_of_scores = WRONG[wrong]
    monkeypatch.setattr(place, name, other)
    base = base_of(config_of(network, head, tied=False)).double()
    for check, said in ((partial(check_base, prompts=PROMPTS, tolerance=1e-12), law), (check_scores, said_of_scores)):
        if said is None:
            check(base)
        else:
            with pytest.raises(AssertionError, match=said):
                check(base)
