"""Every head under the laws of heads: this is their list; and wrong heads that the laws catch."""

from functools import partial

import pytest
import torch
from heads.test_adaptive import KINDS, WIDTH, made
from laws.parts import check_complete, has, part_of, parts
from torch import nn

from esscher.heads.head import SoftmaxHead
from esscher.heads.logistics import LogisticsHead
from esscher.heads.mixture import MixtureHead
from esscher.randomness import Seeded
from esscher.testing import check_head

TOKENS = 7


def drawn(make, *, tied: bool = False):
    """A head of random weights, tied to a table of vectors for its tokens and the opening symbol, or not."""
    with Seeded(3).governs_torch():
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
    "heads.MixtureHead, softmaxes": lambda: drawn(mixture("softmaxes")),
    "heads.MixtureHead, softmaxes, tied": lambda: drawn(mixture("softmaxes"), tied=True),
    "heads.MixtureHead, contexts": lambda: drawn(mixture("contexts")),
    "heads.MixtureHead, contexts, tied": lambda: drawn(mixture("contexts", bias=False), tied=True),
    "heads.LogisticsHead": lambda: LogisticsHead(TOKENS),
    "heads.LogisticsHead, two levels": lambda: LogisticsHead(2),
}
APART = {"networks.build_head": "gives one of those in the list, by its settings"}
FOUND = parts(has("logits", "score", "score_and_level", "prepared"))


def hidden(head, rows: int = 20) -> torch.Tensor:
    return Seeded(5).normal(rows, 9 if isinstance(head, LogisticsHead) else WIDTH).double()


def test_the_list_is_complete():
    check_complete(FOUND, HEADS, APART, __file__)


@pytest.mark.parametrize("case", HEADS)
def test_every_head_obeys_the_laws(case):
    head = HEADS[case]()
    assert isinstance(head, FOUND[part_of(case)])
    check_head(head, hidden(head))


class Plain(SoftmaxHead):
    """A right head; wrong ones differ in one method."""

    def __init__(self):
        super().__init__(TOKENS, WIDTH, bias=True)


class Unnormalised(Plain):
    def score(self, hidden, tokens):
        return super().score(hidden, tokens) + 0.01


class OneBehind(Plain):
    """Scores of the next token: they sum to 1 all the same."""

    def score(self, hidden, tokens):
        return super().score(hidden, (tokens + 1) % TOKENS)


class ScoresWhatIsNotAsked(Plain):
    def score(self, hidden, tokens):
        return super().score(hidden, tokens % TOKENS)


class OtherScores(Plain):
    def score_and_level(self, hidden, tokens):
        score, level = super().score_and_level(hidden, tokens)
        return 1.01 * score, level


class LevelsWithoutBias(Plain):
    def score_and_level(self, hidden, tokens):
        score, level = super().score_and_level(hidden, tokens)
        return score, torch.where(tokens >= 0, (hidden @ self.weight.T).logsumexp(-1), level)


class StepsWithoutBias(Plain):
    def prepared(self, steps):
        return partial(nn.functional.linear, weight=self.weight) if steps > 50 else super().prepared(steps)


class ScoresDoNotLearn(Plain):
    def score(self, hidden, tokens):
        return super().score(hidden, tokens).detach() + 0 * hidden.sum()


class LevelsDoNotLearn(Plain):
    def score_and_level(self, hidden, tokens):
        score, level = super().score_and_level(hidden, tokens)
        return score, level.detach() + 0 * hidden.sum()


WRONG = {
    Unnormalised: "scores must sum to 1",
    OneBehind: "scores must be the normalised logits",
    ScoresWhatIsNotAsked: "a token below 0 must score 0",
    OtherScores: "scores beside levels must be the scores",
    LevelsWithoutBias: "levels must be logsumexps",
    StepsWithoutBias: "prepared for 100 steps",
    ScoresDoNotLearn: "gradients of scores must be",
    LevelsDoNotLearn: "gradients of scores and levels must be",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_wrong_heads_are_caught(wrong):
    check_head(drawn(lambda table: Plain()), hidden(None))
    with pytest.raises(AssertionError, match=WRONG[wrong]):
        check_head(drawn(lambda table: wrong()), hidden(None))
