"""Every head under the laws of heads: this is their list; and wrong heads that the laws catch."""

from functools import cache, partial

import pytest
import torch
from heads.test_adaptive import KINDS, WIDTH, made
from laws.parts import check_complete, has, part_of, parts
from torch import nn

from esscher.core.randomness import SeededRng
from esscher.heads.head import SoftmaxHead
from esscher.heads.mixture import DiscretizedLogisticHead, MixtureHead
from esscher.testing import check_head

TOKENS = 7


def drawn(make, *, tied: bool = False):
    """A head of random weights, tied to a table of vectors for its tokens and the BOS symbol, or not."""
    with SeededRng(3).fork_torch_rng():
        head = make(nn.Embedding(TOKENS + 1, WIDTH).double()) if tied else make(None)
        for weight in head.parameters():
            nn.init.normal_(weight)
    return head.double()


def mixture(kind: str, **more):
    return lambda table: MixtureHead(TOKENS, WIDTH, 3, WIDTH, kind, table, **more)


HEADS = {
    "heads.SoftmaxHead": lambda: drawn(lambda table: SoftmaxHead(TOKENS, WIDTH, bias=True)),
    "heads.SoftmaxHead, without bias": lambda: drawn(lambda table: SoftmaxHead(TOKENS, WIDTH, bias=False)),
    "heads.SoftmaxHead, tied": lambda: drawn(lambda table: SoftmaxHead(TOKENS, WIDTH, table, bias=True), tied=True),
    **{f"heads.AdaptiveSoftmax, {kind}": lambda k=kind: made(*KINDS[k])[1] for kind in KINDS},
    "heads.MixtureHead, softmaxes": lambda: drawn(mixture("mos")),
    "heads.MixtureHead, softmaxes, tied": lambda: drawn(mixture("mos"), tied=True),
    "heads.MixtureHead, contexts": lambda: drawn(mixture("moc")),
    "heads.MixtureHead, contexts, tied": lambda: drawn(mixture("moc", bias=False), tied=True),
    "heads.DiscretizedLogisticHead": lambda: DiscretizedLogisticHead(TOKENS),
    "heads.DiscretizedLogisticHead, two levels": lambda: DiscretizedLogisticHead(2),
}
APART = {"heads.build_head": "gives one of those in the list, by its settings"}


def hidden(head, rows: int = 20) -> torch.Tensor:
    return SeededRng(5).normal(rows, 9 if isinstance(head, DiscretizedLogisticHead) else WIDTH).double()


@cache
def found() -> dict[str, object]:
    """What the package has; a function, because other tests that use the list need not import all of it."""
    return parts(has("logits", "log_probs", "log_probs_and_logsumexp", "logits_fn"))


def test_the_list_is_complete():
    check_complete(found(), HEADS, APART, __file__)


@pytest.mark.parametrize("case", HEADS)
def test_every_head_obeys_the_laws(case):
    head = HEADS[case]()
    assert isinstance(head, found()[part_of(case)])
    check_head(head, hidden(head))


class Plain(SoftmaxHead):
    """A right head; wrong ones differ in one method."""

    def __init__(self):
        super().__init__(TOKENS, WIDTH, bias=True)


class Unnormalised(Plain):
    def log_probs(self, hidden, tokens):
        return super().log_probs(hidden, tokens) + 0.01


class OneBehind(Plain):
    """Scores of the next token: they sum to 1 all the same."""

    def log_probs(self, hidden, tokens):
        return super().log_probs(hidden, (tokens + 1) % TOKENS)


class ScoresWhatIsNotAsked(Plain):
    def log_probs(self, hidden, tokens):
        return super().log_probs(hidden, tokens % TOKENS)


class OtherScores(Plain):
    def log_probs_and_logsumexp(self, hidden, tokens):
        log_probs, logsumexp = super().log_probs_and_logsumexp(hidden, tokens)
        return 1.01 * log_probs, logsumexp


class LevelsWithoutBias(Plain):
    def log_probs_and_logsumexp(self, hidden, tokens):
        log_probs, logsumexp = super().log_probs_and_logsumexp(hidden, tokens)
        return log_probs, torch.where(tokens >= 0, (hidden @ self.weight.T).logsumexp(-1), logsumexp)


class StepsWithoutBias(Plain):
    def logits_fn(self, steps):
        return partial(nn.functional.linear, weight=self.weight) if steps > 50 else super().logits_fn(steps)


class ScoresDoNotLearn(Plain):
    def log_probs(self, hidden, tokens):
        return super().log_probs(hidden, tokens).detach() + 0 * hidden.sum()


class LevelsDoNotLearn(Plain):
    def log_probs_and_logsumexp(self, hidden, tokens):
        log_probs, logsumexp = super().log_probs_and_logsumexp(hidden, tokens)
        return log_probs, logsumexp.detach() + 0 * hidden.sum()


WRONG = {
    Unnormalised: "scores must sum to 1",
    OneBehind: "scores must be the normalised logits",
    ScoresWhatIsNotAsked: "a token below 0 must score 0",
    OtherScores: "scores beside logsumexps must be the scores",
    LevelsWithoutBias: "logsumexps must be those of the logits",
    StepsWithoutBias: "prepared for 100 steps",
    ScoresDoNotLearn: "gradients of scores must be",
    LevelsDoNotLearn: "gradients of scores and logsumexps must be",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_wrong_heads_are_caught(wrong):
    check_head(drawn(lambda table: Plain()), hidden(None))
    with pytest.raises(AssertionError, match=WRONG[wrong]):
        check_head(drawn(lambda table: wrong()), hidden(None))
