"""Mixture heads: mixture of softmaxes (MoS), mixture of contexts (MoC), mixture of discretized logistics.

`MixtureHead` (Yang et al. 2018) computes K contexts h_k = tanh(W_k g + c_k) of a hidden vector g, and a prior pi = softmax(A
g).

    "mos"   P(token) = sum over k of pi_k softmax(weight h_k + bias)        any rank of the log-probabilities
    "moc"   P(token) = softmax(weight (sum over k of pi_k h_k) + bias)      the rank of one softmax: the control

The logits of MoS are log sum_k exp((A g)_k) softmax(weight h_k + bias), so their logsumexp is that of the prior's logits, which
training may set freely. Dropout of contexts acts on `logits` and `log_probs` in training, never on `logits_fn`; as published,
the T vectors of one row of [..., T, D] share a mask. `floor` is added to every probability (1e-8 in the released code), so that
they sum to 1 + V floor. Components whose prior is below `min_prior` are dropped and the others renormalized: another
distribution (`pruning_error_bound`).

`DiscretizedLogisticHead` (Salimans et al. 2017) has no weights: its hidden vector is the logit of the share, the mean and the
log-scale of K logistics. Value v of V is the bin between v - 1/2 and v + 1/2 on the line where values go from -1 to 1; the
first and last bins are unbounded. With sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)), log-probabilities are
exact however small. The logsumexp of the logits is that of the shares.

Letters: N rows, D width of a hidden vector, K components, E width of a context, F = K E.
"""

import math
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, logsigmoid
from torch.utils.checkpoint import checkpoint

from esscher.heads.chunked_log_softmax import (
    LOGITS_PER_CHUNK,
    accumulation_dtype,
    mixture_log_probs,
    no_autocast,
    softmax_log_probs,
    softmax_log_probs_and_logsumexp,
)
from esscher.heads.config import check_choice
from esscher.heads.head import LogitsFn, LogProbsAndLogsumexp, TiedWeightHead, matmul_layout, scatter_scored

MIN_LOG_SCALE = -7.0
MixtureKind = Literal["mos", "moc"]


class _Contexts(NamedTuple):
    """The contexts of hidden vectors; a prior logit of -inf drops a component."""

    vectors: Float[Tensor, "*S K E"]
    prior: Float[Tensor, "*S K"]  # logits, in float32 or better

    def mean(self) -> Float[Tensor, "*S E"]:
        return (self.prior.softmax(-1).to(self.vectors.dtype)[..., None, :] @ self.vectors)[..., 0, :]


class MixtureHead(TiedWeightHead):
    """A mixture of K softmaxes or contexts; with an embedding `table`, its first rows are the weight."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        components: int,
        embedding: int | None = None,
        kind: MixtureKind = "mos",
        table: nn.Embedding | None = None,
        *,
        bias: bool = True,
        latent_dropout: float = 0.0,
        floor: float = 0.0,
        min_prior: float = 0.0,
    ):
        if embedding is None:
            embedding = width if table is None else table.embedding_dim
        super().__init__(vocab_size, embedding, table)
        check_choice("kind of mixture", kind, get_args(MixtureKind))
        if kind == "moc" and (floor or min_prior):
            raise ValueError(f"Only a mixture of softmaxes has floor and min_prior, not one of contexts: {floor}, {min_prior}.")
        self.components, self.kind = components, kind
        self.latent_dropout, self.floor, self.min_prior = latent_dropout, floor, min_prior
        self.latent = nn.Linear(width, components * embedding)
        self.prior = nn.Linear(width, components, bias=False)
        if table is None:
            self.weight = nn.Linear(embedding, vocab_size, bias=False).weight
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return _logits(self._contexts(hidden, self._mask(hidden)), self._weight, self.bias, self.kind, self.floor)

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        scored, contexts = self._scored_contexts(hidden, tokens)
        if self.kind == "moc":
            return scatter_scored(softmax_log_probs(contexts.mean(), self._weight, self.bias, tokens[scored]), scored)
        return scatter_scored(self._mixture_log_probs(contexts, tokens[scored]), scored)

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        scored, contexts = self._scored_contexts(hidden, tokens)
        if self.kind == "moc":
            log_probs, logsumexp = softmax_log_probs_and_logsumexp(contexts.mean(), self._weight, self.bias, tokens[scored])
        else:
            log_probs = self._mixture_log_probs(contexts, tokens[scored])
            logsumexp = contexts.prior.logsumexp(-1) + math.log1p(self.vocab_size * self.floor)
        return scatter_scored(log_probs, scored), scatter_scored(logsumexp, scored)

    def _scored_contexts(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Bool[Tensor, "*S"], _Contexts]:
        """Which tokens are scored, and the contexts before them."""
        scored, mask = tokens >= 0, self._mask(hidden)
        return scored, self._contexts(hidden[scored], None if mask is None else mask[scored])

    def _mixture_log_probs(self, contexts: _Contexts, tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        log_prior = contexts.prior.log_softmax(-1)
        return mixture_log_probs(contexts.vectors, log_prior, self._weight, self.bias, tokens, self.floor)

    def logits_fn(self, steps: int) -> LogitsFn:
        weight = matmul_layout(self._weight, steps)

        def logits(hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
            return _logits(self._contexts(hidden, None), weight, self.bias, self.kind, self.floor)

        return logits

    @torch.no_grad()
    def pruning_error_bound(self, hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        """An upper bound of the error in nats that `min_prior` makes in the log-probability of each token, without dropout. For
        a dropped component only the logit of the token is computed: by Jensen's inequality the sum of the exponentials of all
        logits is at least V times the exponential of their mean."""
        vectors, pruned_prior = self._contexts(hidden, None)
        prior = self.prior(hidden).log_softmax(-1).exp()
        dropped = prior.masked_fill(pruned_prior > -torch.inf, 0.0)
        weight = self._weight
        mean, bias_offset = weight.mean(0), 0.0 if self.bias is None else self.bias[tokens, None] - self.bias.mean()
        bound = ((vectors @ weight[tokens, :, None])[..., 0] - vectors @ mean + bias_offset).exp() / self.vocab_size
        dropped_prob = (dropped * bound.clamp(max=1.0)).sum(1)
        log_kept = torch.log1p(-dropped.sum(1))
        log_probs = mixture_log_probs(vectors, pruned_prior.log_softmax(-1), weight, self.bias, tokens)
        too_low = torch.log1p(dropped_prob / (log_probs + log_kept).exp()) + log_kept
        return torch.maximum(-log_kept, too_low)

    def _contexts(self, hidden: Float[Tensor, "*S D"], mask: Float[Tensor, "*S F"] | None) -> _Contexts:
        vectors, prior = torch.tanh(self.latent(hidden)), self.prior(hidden)
        prior = prior.to(accumulation_dtype(prior.dtype))
        if mask is not None:
            vectors = vectors * mask
        if self.min_prior > 0:
            share = prior.softmax(-1)
            least = share.amax(-1, keepdim=True).clamp(max=self.min_prior)  # the largest always stays
            prior = prior.masked_fill(share < least, -torch.inf)
        return _Contexts(vectors.view(*prior.shape, vectors.shape[-1] // self.components), prior)

    def _mask(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S F"] | None:
        """The dropout mask of contexts in training, shared along the last axis of S where S has two."""
        if not self.training or not self.latent_dropout:
            return None
        shape, width = hidden.shape[:-1], self.latent.out_features
        rows = (*shape[:-1], 1) if len(shape) > 1 else shape
        return dropout(hidden.new_ones(*rows, width), self.latent_dropout).expand(*shape, width)


def _logits(
    contexts: _Contexts, weight: Float[Tensor, "V E"], bias: Float[Tensor, "V"] | None, kind: MixtureKind, floor: float
) -> Float[Tensor, "*S V"]:
    """Logits of all tokens; those of the components are computed in chunks of rows, and again for the gradient."""
    if kind == "moc":
        return linear(contexts.mean(), weight, bias)
    *shape, components, width = contexts.vectors.shape
    step, rows = max(1, LOGITS_PER_CHUNK // (components * len(weight))), math.prod(shape)
    vectors, priors = contexts.vectors.reshape(rows, components, width), contexts.prior.reshape(rows, components)
    chunks = zip(torch.split(vectors, step), torch.split(priors, step), strict=True)
    compute = partial(_mixture_logits, floor=floor)
    if torch.is_grad_enabled():
        once_more = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)  # nothing here is random
        logits = [once_more(*chunk, weight, bias) for chunk in chunks]
    else:
        logits = [compute(*chunk, weight, bias) for chunk in chunks]
    return torch.cat(logits).view(*shape, len(weight))


def _mixture_logits(
    vectors: Float[Tensor, "N K E"],
    prior: Float[Tensor, "N K"],
    weight: Float[Tensor, "V E"],
    bias: Float[Tensor, "V"] | None,
    floor: float,
) -> Float[Tensor, "N V"]:
    """By products of exponentials, which takes fewer passes, if there is no gradient and no probability underflows. In float32
    or better."""
    logits, fast = linear(vectors, weight, bias), not torch.is_grad_enabled()
    logits = logits.to(prior.dtype)
    if fast:
        shares = (logits - logits.amax(-1, keepdim=True)).exp_()
        top = prior.amax(-1, keepdim=True)
        with no_autocast(prior.device):
            mixed = torch.bmm(((prior - top).exp() / shares.sum(-1))[:, None], shares)[:, 0]
        fast = len(mixed) == 0 or float(mixed.amin()) > torch.finfo(mixed.dtype).tiny
    mixed = mixed.log_().add_(top) if fast else torch.logsumexp(logits.log_softmax(-1) + prior[..., None], 1)
    if not floor:
        return mixed
    logsumexp = prior.logsumexp(1, keepdim=True)
    return torch.logaddexp(mixed - logsumexp, torch.full_like(mixed, floor).log()) + logsumexp


class DiscretizedLogisticHead(nn.Module):
    """A mixture of discretized logistics, whose parameters are the hidden vector; in float32 or better."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        share, mean, log_scale = hidden[..., None, :].to(accumulation_dtype(hidden.dtype)).chunk(3, -1)
        values = torch.arange(self.vocab_size, device=hidden.device)[:, None]
        return torch.logsumexp(share + log_bin_probs(values, mean, log_scale, self.vocab_size), -1)

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return self.log_probs_and_logsumexp(hidden, tokens)[0]

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        scored = tokens >= 0
        share, mean, log_scale = hidden[scored].to(accumulation_dtype(hidden.dtype)).chunk(3, -1)
        logsumexp = share.logsumexp(-1)
        logits = torch.logsumexp(share + log_bin_probs(tokens[scored][:, None], mean, log_scale, self.vocab_size), -1)
        return scatter_scored(logits - logsumexp, scored), scatter_scored(logsumexp, scored)

    def logits_fn(self, steps: int) -> LogitsFn:
        return self.logits


def log_bin_probs(
    token: Int[Tensor, "..."], mean: Float[Tensor, "..."], log_scale: Float[Tensor, "..."], vocab_size: int
) -> Float[Tensor, "..."]:
    """The log-probability of the bin of a value under each logistic."""
    if vocab_size == 1:
        return torch.zeros_like(mean + token)
    half, inverse_scale = 1 / (vocab_size - 1), torch.exp(-log_scale.clamp(min=MIN_LOG_SCALE))
    centred = token.to(mean.dtype) * (2 * half) - 1 - mean
    below = torch.where(token == vocab_size - 1, 0.0, logsigmoid(inverse_scale * (centred + half)))
    above = torch.where(token == 0, 0.0, logsigmoid(-inverse_scale * (centred - half)))
    width = torch.where((token == 0) | (token == vocab_size - 1), 0.0, log1mexp(2 * half * inverse_scale))
    return below + above + width


def log1mexp(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log(1 - exp(-x)) of positive numbers."""
    small = x < math.log(2)
    return torch.where(small, torch.log(-torch.expm1(-torch.where(small, x, 1.0))), torch.log1p(-torch.exp(-x)))
