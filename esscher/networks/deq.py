"""DEQ-Transformer (Bai et al. 2019): what one Transformer-XL layer makes of itself, applied until nothing changes.

The layer f maps vectors z of all positions to others; beside z it is given the input, added to queries, keys and values. Its
fixed point z = f(z) stands for a stack of endlessly many tied layers; the gradient is that of the fixed point, so a pass keeps
one layer's activations (`esscher.networks.fixed_point`). Layer norms have no weights. Of what was read, others need keys and
values at the fixed point: a memory holds them, or, while it is learnt from, z and the input's share of them.

A score depends on no later token, not even by the number of iterations: a position mixes its own iterates and stops by itself.
Scores and draws are solved more closely than training passes, so that steps, segments and whole rows are one distribution.
What does not settle is warned of once; `last_solve` and `last_adjoint` tell of the latest. Dropout masks hold for a solve.

With `unrolled` it is that many tied layers, each with a memory of its own; the weights are the same.

Letters as in `esscher.networks.transformer_xl`; I the width of all heads together.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, relu

from esscher.heads.head import laid_out
from esscher.networks.fixed_point import Found, Order, Solve, fixed_point, implicit
from esscher.networks.mixers import Places, RelativeAttention, Sight
from esscher.networks.relative import relative_attention
from esscher.networks.stepping import AttentionStep, BlockStep, Norm, Place
from esscher.networks.transformer_config import DeqConfig, TransformerXLConfig
from esscher.networks.transformer_xl import TransformerXLNetwork, XLState, dropped, last_of

NORM_EPS = 1e-5


class _Layer(nn.Module):
    """Relative attention and a two-layer network, each added to what came in, with a norm without weights after the sum."""

    def __init__(self, config: TransformerXLConfig):
        super().__init__()
        self.mixer = RelativeAttention(config)
        self.inject = nn.Linear(config.width, 3 * self.mixer.ask.out_features)
        self.widen = nn.Linear(config.width, config.feedforward)
        self.narrow = nn.Linear(config.feedforward, config.width)

    def known(self, z: Float[Tensor, "B T W"], share: Float[Tensor, "B T X"]) -> Float[Tensor, "2 H B T D"]:
        """Keys and values, given the input's share of them."""
        heads = self.mixer.heads
        given = share.reshape(*share.shape[:2], 2, heads, share.shape[2] // (2 * heads)).permute(2, 3, 0, 1, 4)
        return self.mixer.known(z) + given

    def step(self, slots: int, steps: int, biases: Tensor, places: Places) -> BlockStep:
        """One position at a time, by the weights as they are now; the input's share is still to be added to the bias."""
        widen, narrow = ((part.bias, laid_out(part.weight, steps).T) for part in (self.widen, self.narrow))
        norm = Norm((self.widen.in_features,), None, None, NORM_EPS)
        return BlockStep(self.mixer.step(slots, steps, biases, places), (norm, norm), widen, narrow, False)


@dataclass(frozen=True)
class _Map:
    """The layer in one pass: everything that stays the same while z changes."""

    layer: _Layer
    asked: Float[Tensor, "B T I"]  # the input's share of queries
    share: Float[Tensor, "B T X"]  # and of keys and values
    before: Float[Tensor, "2 H B M D"] | None  # keys and values of positions before the pass
    places: Float[Tensor, "H R D"]
    biases: Float[Tensor, "2 H D"]
    mask: Tensor | None
    masks: tuple[Tensor | None, ...]  # of attention, its output, inside the other part, and its output

    def __call__(self, z: Float[Tensor, "B T W"], *, twice: bool = False) -> Float[Tensor, "B T W"]:
        """f(z); `twice` makes it so that its gradient has a gradient."""
        layer, (keep, mixed, inner, end) = self.layer, self.masks
        heads = layer.mixer.heads
        query = (layer.mixer.ask(z) + self.asked).unflatten(-1, (heads, -1)).permute(2, 0, 1, 3)
        key, value = self.known(z)
        attend = plain_attention if twice else relative_attention
        seen = attend(query, key, value, self.places, self.biases, self.mask, keep)
        x = _normed(z + _times(layer.mixer.mix(seen.permute(1, 2, 0, 3).flatten(2)), mixed))
        return _normed(x + _times(layer.narrow(_times(relu(layer.widen(x)), inner)), end))

    def known(self, z: Float[Tensor, "B T W"]) -> Float[Tensor, "2 H B K D"]:
        """Keys and values of all positions that can be seen."""
        new = self.layer.known(z, self.share)
        return new if self.before is None else torch.cat([self.before, new], 3)


class DeqNetwork(TransformerXLNetwork):
    """The fixed point of a layer that reads tokens and an opening symbol, from a memory on."""

    def __init__(self, config: DeqConfig, vocab_size: int):
        super().__init__(config.layer, vocab_size, [_Layer(config.layer)])
        self.settings = config
        self.last_solve: Found | None = None
        self.last_adjoint: Found | None = None
        self._penalty: Tensor | None = None
        self._warned: set[str] = set()

    def unroll(self, unrolled: int) -> None:
        """Become so many tied layers, or, with 0, their fixed point."""
        self.settings = replace(self.settings, unrolled=unrolled)
        self.config = replace(self.config, layers=self.settings.layers)

    def penalty(self) -> Float[Tensor, ""] | None:
        """The weighted mean square of the derivatives of the layer in the last training pass, if it was measured."""
        found, self._penalty = self._penalty, None
        return found

    def _stepped(self, token: Int[Tensor, "B"], state: XLState, place: Place) -> Float[Tensor, "B W"]:
        share = self._layer.inject(self._vectors(token))
        steps, x = [_given(step, share) for step in state.steps], share.new_zeros(len(token), self.config.width)
        if self.settings.unrolled:
            for step, cache in zip(steps, state.caches, strict=True):
                x = step(x, cache, place)
            return x
        (step,), (cache,) = steps, state.caches

        def apply(z: Float[Tensor, "B 1 W"]) -> Float[Tensor, "B 1 W"]:
            return step(z[:, 0], cache, place)[:, None]

        point, self.last_solve = fixed_point(apply, x[:, None], self._solve(learning=False), "before")
        self._tell("a step", self.last_solve)
        return apply(point)[:, 0]

    def _pass(
        self, inputs: Int[Tensor, "B T"], past: Sequence[Tensor] | None, sight: Sight
    ) -> tuple[Float[Tensor, "B T W"], list[Tensor], list[Tensor]]:
        self._penalty = None
        share = self._layer.inject(dropped(self._vectors(inputs), self.config, sight))
        inner = self._layer.mixer.ask.out_features
        asked, share = share[..., :inner], share[..., inner:]
        z = share.new_zeros(*inputs.shape, self.config.width)
        before = past or [z[:, :0]] * self.config.layers
        masks, made, kept = self._masks(z, before[0], sight), list[Tensor](), list[Tensor]()
        axis, keeps = 1 if sight.learning else 3, self._layer.mixer.keeps(learning=sight.learning)
        for old in before:
            apply = self._map(asked, share, old, sight, masks)
            at, z = (z, apply(z)) if self.settings.unrolled else self._solved(apply, z, sight)
            known = apply.known(at)
            made.append(known[..., known.shape[3] - z.shape[1] :, :])
            both = torch.cat([at, share], -1)
            memory = torch.cat([old, both] if old.shape[1] else [both], 1) if sight.learning else known.movedim(2, 0)
            kept.append(memory.narrow(axis, *last_of(memory.shape[axis], keeps)).detach())
        return dropped(z, self.config, sight), made, kept

    def _solved(self, apply: _Map, start: Tensor, sight: Sight) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B T W"]]:
        """The fixed point, and what the layer makes of it, which is the same with the gradient of the fixed point."""
        solve = self._solve(learning=sight.learning)
        order: Order = "before" if sight.causal else "all"
        with torch.no_grad():
            point, self.last_solve = fixed_point(apply, start, solve, order, sight.inside)
        self._tell("a training pass" if sight.learning else "a score", self.last_solve)
        if not torch.is_grad_enabled():
            return point, apply(point)
        point.requires_grad_()
        made = apply(point)
        if sight.learning and self.settings.jacobian and float(torch.rand(())) < self.settings.jacobian_share:
            self._penalty = self.settings.jacobian * squared_derivatives(apply, point.detach())
        if not made.requires_grad:
            return point, made
        limit = self.settings.adjoint_iterations if sight.learning else solve.limit

        def tell(found: Found) -> None:
            self.last_adjoint = found
            self._tell("a gradient", found)

        return point, implicit(point, made, replace(solve, limit=limit), "after" if sight.causal else "all", tell)

    def _map(self, asked: Tensor, share: Tensor, old: Tensor, sight: Sight, masks: tuple[Tensor | None, ...]) -> _Map:
        """The layer of a pass, after a memory."""
        layer, length, before = self._layer, asked.shape[1], None
        if old.dim() == 5:
            before = old.movedim(0, 2)
        elif old.shape[1]:
            before = layer.known(old[..., : self.config.width], old[..., self.config.width :])
        keys = length + (0 if before is None else before.shape[3])
        places = layer.mixer._places(sight, keys - 1, 0 if sight.causal else 1 - length)
        mask = sight.hidden(length, keys, asked.device)
        return _Map(layer, asked, share, before, places, self._biases[0], mask, masks)

    def _masks(self, z: Float[Tensor, "B T W"], old: Tensor, sight: Sight) -> tuple[Tensor | None, ...]:
        """What is dropped, for a whole solve: of attention, and, the same at all positions, of three vectors."""
        config, (rows, length, width) = self.config, z.shape
        if not sight.learning:
            return None, None, None, None
        keys = length + old.shape[1]
        keep = z.new_ones(config.heads, rows, length, keys) if config.attention_dropout else None
        parts = [dropout(z.new_ones(rows, 1, size), config.dropout) for size in (width, config.feedforward, width)]
        return (None if keep is None else dropout(keep, config.attention_dropout), *parts)

    def _solve(self, *, learning: bool) -> Solve:
        settings = self.settings
        if learning:
            return Solve(settings.tolerance, settings.iterations, settings.mixed)
        return Solve(settings.exact_tolerance, settings.exact_iterations, settings.mixed)

    def _tell(self, what: str, found: Found) -> None:
        """Note how a solve went, and warn once of each kind that did not settle."""
        if found.settled or what in self._warned:
            return
        self._warned.add(what)
        what_now = "was used all the same, and such are not told again"
        warnings.warn(
            f"The fixed point of {what} did not settle: after {found.iterations} iterations the layer still changes a position "
            f"by {found.change:.2g} of its size. What was found {what_now}; raise the limit of iterations, train with a "
            f"jacobian penalty, or begin with unrolled layers.",
            stacklevel=3,
        )

    @property
    def _stack(self) -> Sequence[nn.Module]:
        return [self._layer] * self.config.layers

    @property
    def _layer(self) -> _Layer:
        return cast(_Layer, self.blocks[0])

    def __getstate__(self) -> dict[str, Any]:
        """Without the penalty, which belongs to one pass of this very network."""
        return {**self.__dict__, "_penalty": None}


def squared_derivatives(apply: _Map, point: Float[Tensor, "B T W"]) -> Float[Tensor, ""]:
    """An unbiased estimate of the mean over outputs of the squares of a map's derivatives: |J^T v|^2 with v normal."""
    point = point.requires_grad_()
    made = apply(point, twice=True)
    (back,) = torch.autograd.grad(made, point, torch.randn_like(made), create_graph=True)
    return back.square().mean()


def plain_attention(
    query: Float[Tensor, "H B T D"],
    key: Float[Tensor, "H B K D"],
    value: Float[Tensor, "H B K D"],
    place: Float[Tensor, "H R D"],
    biases: Float[Tensor, "2 H D"],
    mask: Tensor | None,
    keep: Tensor | None = None,
) -> Float[Tensor, "H B T D"]:
    """`relative_attention`, whose gradient has no gradient, out of parts whose gradients have."""
    queries, keys = query.shape[2], key.shape[2]
    row = torch.arange(queries - 1, -1, -1, device=query.device)[:, None] + torch.arange(keys, device=query.device)
    by_place = (query + biases[1, :, None, None]) @ place[:, None].mT
    score = by_place.gather(3, row.clamp(max=place.shape[1] - 1).expand(*query.shape[:2], -1, -1))
    score = (score + (query + biases[0, :, None, None]) @ key.mT) * query.shape[3] ** -0.5
    share = (score if mask is None else score.masked_fill(mask, -torch.inf)).softmax(-1)
    return (share if keep is None else share * keep) @ value


def _given(step: BlockStep, share: Float[Tensor, "B X"]) -> BlockStep:
    """A step that adds the input's share to queries, which are scaled, keys and values."""
    mixer = step.mixer
    assert isinstance(mixer, AttentionStep)
    bias, weight = mixer.into
    inner = share.shape[1] // 3
    scaled = torch.cat([share[:, :inner] * mixer.places.shape[1] ** -0.5, share[:, inner:]], 1)
    return replace(step, mixer=replace(mixer, into=(bias + scaled, weight)))


def _times(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def _normed(x: Float[Tensor, "*S W"]) -> Float[Tensor, "*S W"]:
    return layer_norm(x, x.shape[-1:], eps=NORM_EPS)
