"""Mixtures as heads: of softmaxes, whose log-probabilities have any rank, and of contexts, whose rank is that of one softmax.

Of a hidden vector g the head makes K contexts h_k = tanh(W_k g + c_k) and their prior pi = softmax(A g) (Yang et al. 2018).

    "softmaxes"   P(token) = sum over k of pi_k softmax(weight h_k + bias)        (MoS)
    "contexts"    P(token) = softmax(weight (sum over k of pi_k h_k) + bias)      (MoC), the control

Scores of a mixture of softmaxes never hold the logits of all components at once, nor keep them for the gradient. Its logits
are log sum_k exp((A g)_k) softmax(weight h_k + bias): their logsumexp is that of the prior's, a level that learns freely.

Dropout of contexts acts on `logits` and `score` in training, never on `prepared`. It is locked over time as published: hidden
vectors [..., T, D] of a row have one mask for all T; rows of [N, D] have one each. `floor` is added to every probability, as
the released code adds 1e-8; what it tells then sums to 1 + V floor. Components whose prior is below `least_prior` are left
out, and the others share their part: it is another distribution, and `distance` bounds how far from the whole one.

Letters beside those of `esscher.space`: N rows, D width of a hidden vector, K components, E width of a context.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.utils.checkpoint import checkpoint

from esscher.heads.head import Logits, TableHead, laid_out, placed
from esscher.heads.levels import softmax_score_and_level
from esscher.heads.softmax import LOGITS_AT_ONCE, mixture_score, softmax_score

MixtureKind = Literal["softmaxes", "contexts"]


class _Contexts(NamedTuple):
    """What the head makes of hidden vectors; a prior of -inf is a component left out."""

    vectors: Float[Tensor, "*S K E"]
    prior: Float[Tensor, "*S K"]  # its logits

    def mean(self) -> Float[Tensor, "*S E"]:
        return (self.prior.softmax(-1)[..., None, :] @ self.vectors)[..., 0, :]


class MixtureHead(TableHead):
    """A mixture of K softmaxes or contexts; with a `table` of input vectors, its first rows are the weight."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        components: int,
        embedding: int | None = None,
        kind: MixtureKind = "softmaxes",
        table: nn.Embedding | None = None,
        *,
        bias: bool = True,
        latent_dropout: float = 0.0,
        floor: float = 0.0,
        least_prior: float = 0.0,
    ):
        if embedding is None:
            embedding = width if table is None else table.embedding_dim
        super().__init__(vocab_size, embedding, table)
        if kind not in ("softmaxes", "contexts"):
            raise ValueError(f"Unknown kind of mixture {kind!r}; the known ones are softmaxes and contexts.")
        if kind == "contexts" and (floor or least_prior):
            raise ValueError(f"Only softmaxes have a floor and a least prior, not contexts: {floor}, {least_prior}.")
        self.components, self.kind = components, kind
        self.latent_dropout, self.floor, self.least_prior = latent_dropout, floor, least_prior
        self.latent = nn.Linear(width, components * embedding)
        self.prior = nn.Linear(width, components, bias=False)
        if table is None:
            self.weight = nn.Linear(embedding, vocab_size, bias=False).weight
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return _logits(self._contexts(hidden, self._mask(hidden)), self._weight, self.bias, self.kind, self.floor)

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        asked, contexts = self._asked(hidden, tokens)
        if self.kind == "contexts":
            found = softmax_score(contexts.mean(), self._weight, self.bias, tokens[asked])
        else:
            found = self._mixed(contexts, tokens[asked])
        return placed(found, asked)

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        asked, contexts = self._asked(hidden, tokens)
        if self.kind == "contexts":
            score, level = softmax_score_and_level(contexts.mean(), self._weight, self.bias, tokens[asked])
        else:
            score = self._mixed(contexts, tokens[asked])
            level = contexts.prior.logsumexp(-1) + math.log1p(self.vocab_size * self.floor)
        return placed(score, asked), placed(level, asked)

    def _asked(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> tuple[Bool[Tensor, "*S"], _Contexts]:
        """Which tokens are asked for, and the contexts before them."""
        asked, mask = tokens >= 0, self._mask(hidden)
        return asked, self._contexts(hidden[asked], None if mask is None else mask[asked])

    def _mixed(self, contexts: _Contexts, tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        log_prior = contexts.prior.log_softmax(-1)
        return mixture_score(contexts.vectors, log_prior, self._weight, self.bias, tokens, self.floor)

    def prepared(self, steps: int) -> Logits:
        weight = laid_out(self._weight, steps)

        def logits(hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
            return _logits(self._contexts(hidden, None), weight, self.bias, self.kind, self.floor)

        return logits

    @torch.no_grad()
    def distance(self, hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        """No less than how far each token's score without dropout is from the one of all components, in nats.

        Of a component that is left out only the token's own logit is computed: by Jensen's inequality the sum of all is at
        least V times the exponential of their mean.
        """
        vectors, kept = self._contexts(hidden, None)
        prior = self.prior(hidden).log_softmax(-1).exp()
        out = prior.masked_fill(kept > -torch.inf, 0.0)
        weight = self._weight
        middle, level = weight.mean(0), 0.0 if self.bias is None else self.bias[tokens, None] - self.bias.mean()
        above = ((vectors @ weight[tokens, :, None])[..., 0] - vectors @ middle + level).exp() / self.vocab_size
        most = (out * above.clamp(max=1.0)).sum(1)
        log_left = torch.log1p(-out.sum(1))
        score = mixture_score(vectors, kept.log_softmax(-1), weight, self.bias, tokens)
        too_low = torch.log1p(most / (score + log_left).exp()) + log_left
        return torch.maximum(-log_left, too_low)

    def _contexts(self, hidden: Float[Tensor, "*S D"], mask: Float[Tensor, "*S F"] | None) -> _Contexts:
        vectors, prior = torch.tanh(self.latent(hidden)), self.prior(hidden)
        if mask is not None:
            vectors = vectors * mask
        if self.least_prior > 0:
            share = prior.softmax(-1)
            least = share.amax(-1, keepdim=True).clamp(max=self.least_prior)  # the greatest always stays
            prior = prior.masked_fill(share < least, -torch.inf)
        return _Contexts(vectors.view(*prior.shape, vectors.shape[-1] // self.components), prior)

    def _mask(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S F"] | None:
        """What contexts are multiplied by in training, the same for all of the last axis of S where it has two."""
        if not self.training or not self.latent_dropout:
            return None
        shape, width = hidden.shape[:-1], self.latent.out_features
        rows = (*shape[:-1], 1) if len(shape) > 1 else shape
        return dropout(hidden.new_ones(*rows, width), self.latent_dropout).expand(*shape, width)


def _logits(
    contexts: _Contexts, weight: Float[Tensor, "V E"], bias: Float[Tensor, "V"] | None, kind: MixtureKind, floor: float
) -> Float[Tensor, "*S V"]:
    """Logits of every token; those of all components are made of few rows at a time, and made again for the gradient."""
    if kind == "contexts":
        return linear(contexts.mean(), weight, bias)
    *shape, components, width = contexts.vectors.shape
    step, rows = max(1, LOGITS_AT_ONCE // (components * len(weight))), math.prod(shape)
    vectors, priors = contexts.vectors.reshape(rows, components, width), contexts.prior.reshape(rows, components)
    pieces = zip(torch.split(vectors, step), torch.split(priors, step), strict=True)
    make = partial(_of_softmaxes, floor=floor)
    if torch.is_grad_enabled():
        found = [checkpoint(make, *some, weight, bias, use_reentrant=False) for some in pieces]
    else:
        found = [make(*some, weight, bias) for some in pieces]
    return torch.cat(found).view(*shape, len(weight))


def _of_softmaxes(
    vectors: Float[Tensor, "N K E"],
    prior: Float[Tensor, "N K"],
    weight: Float[Tensor, "V E"],
    bias: Float[Tensor, "V"] | None,
    floor: float,
) -> Float[Tensor, "N V"]:
    logits = linear(vectors, weight, bias)
    found = None if torch.is_grad_enabled() else _mixed_once(logits, prior)
    if found is None:
        found = torch.logsumexp(logits.log_softmax(-1) + prior[..., None], 1)
    if not floor:
        return found
    level = prior.logsumexp(1, keepdim=True)
    return torch.logaddexp(found - level, torch.full_like(found, floor).log()) + level


def _mixed_once(logits: Float[Tensor, "N K V"], prior: Float[Tensor, "N K"]) -> Float[Tensor, "N V"] | None:
    """The same from the exponentials themselves, which takes fewer passes; None where one of them is too small to be told."""
    shares = (logits - logits.amax(-1, keepdim=True)).exp_()
    top = prior.amax(-1, keepdim=True)
    mixed = torch.bmm(((prior - top).exp() / shares.sum(-1))[:, None], shares)[:, 0]
    return mixed.log_().add_(top) if len(mixed) == 0 or float(mixed.amin()) > torch.finfo(mixed.dtype).tiny else None
