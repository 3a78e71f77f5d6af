"""DEQ-Transformer (Bai et al. 2019): the fixed point z = f(z) of one Transformer-XL layer f, and its solver.

The input is added to the queries, keys and values of f; layer norms have no weights. The memory holds the keys and values at
the fixed point, or, in training, z and the projection of the input. With `unrolled`, the network is that many tied layers with
the same weights, each with its own memory. Each position mixes its own iterates (Anderson acceleration) and stops as soon as it
and everything it can depend on change by less than the tolerance: its result is a function of the inputs up to there, to the
last bit. A layer may have several fixed points. Scores and samples are of the one that a step finds: from 0, with all earlier
positions at their own (`solve_in_order`), and more precisely than in training, so that steps, segments and rows give one
distribution. A solve that does not converge warns once per kind. The gradient is implicit: with g that of z, the gradient of
the parameters is that of f at w, where w = g + (df/dz)^T w is solved in the same way, backwards in time.

Shape letters as in `esscher.networks.transformer_xl`; I the width of all heads together, K iterates that are mixed.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, layer_norm, relu

from esscher.heads.chunked_log_softmax import accumulation_dtype, no_autocast
from esscher.heads.head import matmul_layout
from esscher.networks.incremental_decoding import AttentionStep, BlockStep, Vectors
from esscher.networks.regularization import PenalizedTraining
from esscher.networks.relative_attention_ops import relative_attention
from esscher.networks.token_mixers import AttentionContext, RelativeAttention, SinusoidFn
from esscher.networks.transformer_config import DeqConfig, TransformerXLConfig
from esscher.networks.transformer_xl import TransformerXLNetwork, XLState, apply_dropout, tail_range

NORM_EPS = 1e-5
MIN_TOLERANCE_EPS = 8  # the smallest tolerance, in units of the machine epsilon
RIDGE = 1e-2  # keeps coefficients small where iterates are nearly equal, or other positions still change

BLOCK = 32  # positions that `solve_in_order` solves together
SAME = 10  # solutions of a position are one if they differ by at most so many tolerances

LIMITS = {  # settings that limit the iterations of each kind of solve
    "a score": "exact_iterations", "a step": "exact_iterations", "a training pass": "iterations",
    "a gradient": "adjoint_iterations",
}  # fmt: skip

Dependence = Literal["itself", "before", "after", "all"]
"""The positions of its row that a position can depend on."""


@dataclass(frozen=True)
class SolverConfig:
    """Iterate at most `limit` times, until no position changes by `tolerance` of its norm; mix `anderson_history` iterates."""

    tolerance: float
    limit: int
    anderson_history: int = 6

    def reachable_tolerance(self, dtype: torch.dtype) -> float:
        """The tolerance, or what rounding leaves if that is more."""
        return max(self.tolerance, MIN_TOLERANCE_EPS * torch.finfo(dtype).eps)


@dataclass(frozen=True)
class SolverResult:
    """How often the map was applied at most, the largest relative change that a position was left with, and whether that is
    small enough."""

    iterations: int
    change: float
    converged: bool


def fixed_point(
    apply: Callable[[Tensor], Tensor],
    start: Float[Tensor, "B T W"],
    solver: SolverConfig,
    order: Dependence,
    inside: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T W"], SolverResult]:
    """The fixed point of a map, which returns a new tensor; positions that are not `inside` need not converge."""
    point, change, number = _iterate(apply, start, solver, order, inside)
    return point, _summary(number, change, solver)


def _summary(iterations: int, change: Float[Tensor, "B T"], solver: SolverConfig) -> SolverResult:
    largest = float(change.max()) if change.numel() else 0.0
    return SolverResult(iterations, largest, largest <= solver.reachable_tolerance(change.dtype))


def _iterate(
    apply: Callable[[Tensor], Tensor],
    start: Float[Tensor, "B T W"],
    solver: SolverConfig,
    order: Dependence,
    inside: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B T"], int]:
    """The last iterate, the relative change of each position and what it depends on when it stopped, and the number of
    iterations."""
    at, past = start, list[tuple[Tensor, Tensor]]()  # iterates, and the changes the map makes to them
    tolerance, left = solver.reachable_tolerance(start.dtype), start.new_full(start.shape[:2], torch.inf)
    for number in range(1, solver.limit + 1):
        output = apply(at)
        step = output - at
        size = step.norm(dim=-1) / output.norm(dim=-1).clamp(min=torch.finfo(start.dtype).tiny)
        change = _max_dependent_change(size if inside is None else size * inside, order)
        left = torch.where(left <= tolerance, left, change)
        done = left <= tolerance
        if bool(done.all()):
            return at, left, number
        past = [*past, (at, step)][-solver.anderson_history :]
        at = torch.where(done[..., None], at, _anderson_step(past))
    return at, left, solver.limit


def solve_in_order(
    apply: "_LayerMap", start: Float[Tensor, "B T W"], solver: SolverConfig
) -> tuple[Float[Tensor, "B T W"], SolverResult]:
    """The fixed point of each position from its start, with all positions before it at theirs: what single steps find."""
    points, changes, iterations, before = list[Tensor](), list[Tensor](), 0, apply.before
    for first in range(0, start.shape[1], BLOCK):
        block = apply.narrow(first, min(first + BLOCK, start.shape[1]), before)
        point, change, number = _solve_block(block, start[:, first : first + BLOCK], solver)
        points.append(point)
        changes.append(change)
        iterations, before = max(iterations, number), block.kv(point)
    return torch.cat(points, 1), _summary(iterations, torch.cat(changes, 1), solver)


def _solve_block(
    apply: "_LayerMap", start: Float[Tensor, "B T W"], solver: SolverConfig
) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B T"], int]:
    """Solve all positions together, then each alone with the others where they were found. Up to the first position that is
    found elsewhere, this is what steps find; those after it are solved one by one."""
    together, change, iterations = _iterate(apply, start, solver, "before")
    if start.shape[1] < 2:
        return together, change, iterations
    point, change, iterations = _iterate(apply.alone(together), start, solver, "itself")
    apart = SAME * solver.reachable_tolerance(start.dtype)
    differs = (point - together).norm(dim=-1) > apart * point.norm(dim=-1)
    known = differs.long().cumsum(1).cumsum(1) <= 1  # up to the first that differs
    first, point = int(known.all(0).sum()), point.clone()
    before = apply.narrow(0, first, apply.before).kv(point[:, :first]) if first < start.shape[1] else None
    for column in range(first, start.shape[1]):
        here, one = slice(column, column + 1), apply.narrow(column, column + 1, before)
        alone, left, number = _iterate(one, start[:, here], solver, "itself")
        point[:, here] = torch.where(known[:, here, None], point[:, here], alone)
        change[:, here] = torch.where(known[:, here], change[:, here], left)
        iterations, before = max(iterations, number), one.kv(point[:, here])
    return point, change, iterations


def implicit_gradient(
    point: Vectors, output: Vectors, solver: SolverConfig, order: Dependence, report: Callable[[SolverResult], None]
) -> Vectors:
    """`output`, the map of the leaf `point`, with the gradient of the fixed point; `report` gets the result of its solve."""
    result: Tensor = _Implicit.apply(output, point, (output, solver, order, report))  # type: ignore[no-untyped-call]
    return result


class _Implicit(torch.autograd.Function):
    """The identity, whose gradient is the solution of the adjoint equation."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, point: Tensor, settings: Any) -> Tensor:
        ctx.settings, ctx.point = settings, point
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        output, solver, order, report = ctx.settings

        def adjoint(weight: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(output, ctx.point, weight, retain_graph=True)
            return grad + product

        weight, result = fixed_point(adjoint, grad, solver, order)
        report(result)
        return weight, None, None


def _max_dependent_change(change: Float[Tensor, "B T"], order: Dependence) -> Float[Tensor, "B T"]:
    """The largest change of all positions that a position can depend on."""
    if change.numel() == 0 or order == "itself":
        return change
    if order == "all":
        return change.amax(1, keepdim=True).expand_as(change)
    if order == "after":
        return change.flip(1).cummax(1).values.flip(1)
    return change.cummax(1).values


def _anderson_step(past: list[tuple[Tensor, Tensor]]) -> Float[Tensor, "B T W"]:
    """The next iterate (Anderson 1965): the map of the mixture of iterates whose mixed change is smallest."""
    *earlier, (at, step) = past
    if not earlier:
        return at + step
    changes = torch.stack([other - step for _, other in earlier], -2)  # [B, T, K, W]
    moves = torch.stack([before + other - at - step for before, other in earlier], -2)
    products = changes @ changes.mT
    size = products.diagonal(dim1=-2, dim2=-1)
    scale = (size + torch.finfo(size.dtype).tiny ** 0.5).rsqrt()  # to norm 1, so that early, large changes do not dominate
    gram = products * scale[..., None] * scale[..., None, :]
    gram = gram + torch.eye(len(earlier), dtype=size.dtype, device=size.device) * RIDGE
    coefficients = torch.linalg.solve(gram, -(changes @ step[..., None])[..., 0] * scale) * scale
    return at + step + (coefficients[..., None, :] @ moves)[..., 0, :]


class _DeqLayer(nn.Module):
    """Relative attention and a feed-forward part, each with a residual connection and a post-norm without weights."""

    def __init__(self, config: TransformerXLConfig):
        super().__init__()
        self.mixer = RelativeAttention(config)
        self.input_injection_proj = nn.Linear(config.width, 3 * self.mixer.q_proj.out_features)
        self.up_proj = nn.Linear(config.width, config.feedforward)
        self.down_proj = nn.Linear(config.feedforward, config.width)

    def kv(self, z: Float[Tensor, "B T W"], kv_input: Float[Tensor, "B T X"]) -> Float[Tensor, "2 H B T D"]:
        """Keys and values, with the injected input."""
        heads = self.mixer.heads
        injected = kv_input.reshape(*kv_input.shape[:2], 2, heads, kv_input.shape[2] // (2 * heads)).permute(2, 3, 0, 1, 4)
        return self.mixer.kv(z) + injected

    def step(self, slots: int, steps: int, biases: Tensor, sinusoids: SinusoidFn) -> BlockStep:
        """The layer for one position, with the current weights; `_inject_input` adds the input to it."""
        up_proj, down_proj = ((part.bias, matmul_layout(part.weight, steps).T) for part in (self.up_proj, self.down_proj))
        norm = (self.up_proj.in_features,), None, None, NORM_EPS
        return BlockStep(self.mixer.step(slots, steps, biases, sinusoids), (norm, norm), up_proj, down_proj, False)


@dataclass(frozen=True)
class _LayerMap:
    """The layer as a map of z, with everything that is constant during a solve."""

    layer: _DeqLayer
    query_input: Float[Tensor, "B T I"]  # input injected into queries
    kv_input: Float[Tensor, "B T X"]  # input injected into keys and values
    before: Float[Tensor, "2 H B M D"] | None  # keys and values of the memory
    rel_pos: Float[Tensor, "H R D"]
    biases: Float[Tensor, "2 H D"]
    mask: Tensor | None
    masks: tuple[Tensor | None, ...]  # dropout of attention weights, attention output, inner feed-forward, feed-forward output

    def __call__(self, z: Float[Tensor, "B T W"], *, twice: bool = False) -> Float[Tensor, "B T W"]:
        """f(z); with `twice` its gradient is differentiable."""
        query, (key, value) = self._query(z), self.kv(z)
        attend = twice_differentiable_attention if twice else relative_attention
        return self._output(z, attend(query, key, value, self.rel_pos, self.biases, self.mask, self.masks[0]))

    def alone(self, known: Float[Tensor, "B T W"]) -> Callable[[Tensor], Tensor]:
        """The same map of each position by itself, with all positions before it at `known`; without dropout."""
        kv = self.kv(known)

        def apply(z: Float[Tensor, "B T W"]) -> Float[Tensor, "B T W"]:
            own = self.layer.kv(z, self.kv_input)
            return self._output(z, attention_beside(self._query(z), kv, own, self.rel_pos, self.biases, self.mask))

        return apply

    def narrow(self, first: int, end: int, before: Float[Tensor, "2 H B M D"] | None) -> "_LayerMap":
        """The map of some of the positions, after keys and values of all before them."""
        keys = end if self.before is None else self.before.shape[3] + end
        query_input, kv_input = (part[:, first:end] for part in (self.query_input, self.kv_input))
        rel_pos, mask = self.rel_pos[:, self.rel_pos.shape[1] - keys :], self.mask
        mask = None if mask is None else mask[:, first:end, :keys]
        return _LayerMap(self.layer, query_input, kv_input, before, rel_pos, self.biases, mask, self.masks)

    def _query(self, z: Float[Tensor, "B T W"]) -> Float[Tensor, "H B T D"]:
        query = self.layer.mixer.q_proj(z) + self.query_input
        return query.unflatten(-1, (self.layer.mixer.heads, -1)).permute(2, 0, 1, 3)

    def _output(self, z: Float[Tensor, "B T W"], attended: Float[Tensor, "H B T D"]) -> Float[Tensor, "B T W"]:
        layer, (_, mixed_mask, inner_mask, output_mask) = self.layer, self.masks
        x = _layer_norm(z + _apply_mask(layer.mixer.o_proj(attended.permute(1, 2, 0, 3).flatten(2)), mixed_mask))
        return _layer_norm(x + _apply_mask(layer.down_proj(_apply_mask(relu(layer.up_proj(x)), inner_mask)), output_mask))

    def kv(self, z: Float[Tensor, "B T W"]) -> Float[Tensor, "2 H B K D"]:
        """Keys and values of the memory and of the pass."""
        new = self.layer.kv(z, self.kv_input)
        return new if self.before is None else torch.cat([self.before, new], 3)


class DeqNetwork(PenalizedTraining, TransformerXLNetwork):
    """The fixed point of a layer with a memory. The penalty is that of the Jacobian, if it was estimated."""

    def __init__(self, config: DeqConfig, vocab_size: int):
        super().__init__(config.layer, vocab_size, [_DeqLayer(config.layer)])
        self.settings = config
        self.last_solve: SolverResult | None = None
        self.last_adjoint: SolverResult | None = None
        self._warned: set[str] = set()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "DeqNetwork":
        """`to(torch.bfloat16)` moves a network without unrolled layers and keeps its dtype: no iterate in bfloat16 comes near
        enough to the fixed point for steps to equal scores."""

        def keep_precision(tensor: Tensor) -> Tensor:
            applied = fn(tensor)
            low = applied.dtype.is_floating_point and applied.dtype != accumulation_dtype(applied.dtype)
            return tensor.to(applied.device) if low else applied

        applied: DeqNetwork = super()._apply(fn if self.settings.unrolled else keep_precision, recurse)  # type: ignore[no-untyped-call]
        return applied

    def unroll(self, unrolled: int) -> None:
        """Become `unrolled` tied layers, or, with 0, their fixed point."""
        self.settings = replace(self.settings, unrolled=unrolled)
        self.config = replace(self.config, layers=self.settings.layers)

    def _step_tokens(self, token: Int[Tensor, "B"], state: XLState) -> Float[Tensor, "B W"]:
        injected = self._layer.input_injection_proj(self._embed(token))
        steps, x = [_inject_input(step, injected) for step in state.steps], injected.new_zeros(len(token), self.config.width)
        if self.settings.unrolled:
            for step, cache in zip(steps, state.caches, strict=True):
                x = step(x, cache, state.position)
            return x
        (step,), (cache,) = steps, state.caches

        def apply(z: Float[Tensor, "B 1 W"]) -> Float[Tensor, "B 1 W"]:
            return step(z[:, 0], cache, state.position)[:, None]

        point, self.last_solve = fixed_point(apply, x[:, None], self._solver(training=False), "before")
        self._warn_unconverged("a step", self.last_solve)
        return apply(point)[:, 0]

    def _pass(
        self, inputs: Int[Tensor, "B T"], past: Sequence[Tensor] | None, context: AttentionContext
    ) -> tuple[Float[Tensor, "B T W"], list[Tensor], list[Tensor]]:
        if self.settings.unrolled:
            return self._pass_in_dtype(inputs, past, context)
        with no_autocast(inputs.device):  # no iterate in bfloat16 comes as near to the fixed point as the tolerances
            return self._pass_in_dtype(inputs, past, context)

    def _pass_in_dtype(
        self, inputs: Int[Tensor, "B T"], past: Sequence[Tensor] | None, context: AttentionContext
    ) -> tuple[Float[Tensor, "B T W"], list[Tensor], list[Tensor]]:
        config, self._penalty = self.config, None
        injected = self._layer.input_injection_proj(apply_dropout(self._embed(inputs), config, context))
        inner = self._layer.mixer.q_proj.out_features
        query_input, kv_input = injected[..., :inner], injected[..., inner:]
        z = injected.new_zeros(*inputs.shape, config.width)
        before = past or [z[:, :0]] * config.layers
        masks: tuple[Tensor | None, ...] = (None,) * 4  # fixed during a solve; those of vectors are the same at all positions
        if context.training:
            sizes = (config.width, config.feedforward, config.width)
            keep = z.new_ones(config.heads, *inputs.shape, inputs.shape[1] + before[0].shape[1])
            parts = [dropout(z.new_ones(len(z), 1, size), config.dropout) for size in sizes]
            masks = (dropout(keep, config.attention_dropout) if config.attention_dropout else None, *parts)
        new_kv, memories = list[Tensor](), list[Tensor]()
        axis, memory_length = 1 if context.training else 3, self._layer.mixer.memory_length(training=context.training)
        for old in before:
            apply = self._map(query_input, kv_input, old, context, masks)
            at, z = (z, apply(z)) if self.settings.unrolled else self._solve(apply, z, context)
            kv = apply.kv(at)
            new_kv.append(kv[..., kv.shape[3] - z.shape[1] :, :])
            new = torch.cat([at, kv_input], -1)
            memory = torch.cat([old, new] if old.shape[1] else [new], 1) if context.training else kv.movedim(2, 0)
            memories.append(memory.narrow(axis, *tail_range(memory.shape[axis], memory_length)).detach())
        return apply_dropout(z, config, context), new_kv, memories

    def _solve(
        self, apply: _LayerMap, start: Tensor, context: AttentionContext
    ) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B T W"]]:
        """The fixed point, and the output of the layer there: the same values, with the gradient of the fixed point."""
        solver = self._solver(training=context.training)
        order: Dependence = "before" if context.causal else "all"
        with torch.no_grad():
            if context.training or not context.causal:
                point, self.last_solve = fixed_point(apply, start, solver, order, context.inside)
            else:
                point, self.last_solve = solve_in_order(apply, start, solver)
        self._warn_unconverged("a training pass" if context.training else "a score", self.last_solve)
        if not torch.is_grad_enabled():
            return point, apply(point)
        point.requires_grad_()
        output = apply(point)
        if context.training and self.settings.jacobian_weight and float(torch.rand(())) < self.settings.jacobian_probability:
            self._penalty = self.settings.jacobian_weight * jacobian_penalty(apply, point.detach())
        if not output.requires_grad:
            return point, output
        limit = self.settings.adjoint_iterations if context.training else solver.limit

        def report(result: SolverResult) -> None:
            self.last_adjoint = result
            self._warn_unconverged("a gradient", result)

        order = "after" if context.causal else "all"
        return point, implicit_gradient(point, output, replace(solver, limit=limit), order, report)

    def _map(
        self, query_input: Tensor, kv_input: Tensor, old: Tensor, context: AttentionContext, masks: tuple[Tensor | None, ...]
    ) -> _LayerMap:
        """The layer of a pass after the memory `old`."""
        layer, length, before = self._layer, query_input.shape[1], None
        if old.dim() == 5:
            before = old.movedim(0, 2)
        elif old.shape[1]:
            before = layer.kv(old[..., : self.config.width], old[..., self.config.width :])
        keys = length + (0 if before is None else before.shape[3])
        rel_pos = layer.mixer._rel_pos(context, keys - 1, 0 if context.causal else 1 - length)
        mask = context.masked(length, keys, query_input.device)
        return _LayerMap(layer, query_input, kv_input, before, rel_pos, self._biases[0], mask, masks)

    def _solver(self, *, training: bool) -> SolverConfig:
        settings = self.settings
        if training:
            return SolverConfig(settings.tolerance, settings.iterations, settings.anderson_history)
        return SolverConfig(settings.exact_tolerance, settings.exact_iterations, settings.anderson_history)

    def _warn_unconverged(self, what: str, result: SolverResult) -> None:
        """Warn if a solve did not converge, once for each kind of solve."""
        if result.converged or what in self._warned:
            return
        self._warned.add(what)
        draws = " Log-probabilities of draws can differ from their scores." if what in ("a score", "a step") else ""
        warnings.warn(
            f"The fixed point of {what} did not converge: after {result.iterations} iterations the layer still changes a "
            f"position by {result.change:.2g} of its norm.{draws} The last iterate was used, and further warnings of this kind "
            f"are suppressed; raise {LIMITS[what]} (of a trained model, in its config.json), train with a Jacobian penalty, or "
            f"begin with unrolled layers.",
            stacklevel=3,
        )

    @property
    def _stack(self) -> Sequence[nn.Module]:
        return [self._layer] * self.config.layers

    @property
    def _layer(self) -> _DeqLayer:
        return cast(_DeqLayer, self.blocks[0])


def jacobian_penalty(apply: _LayerMap, point: Float[Tensor, "B T W"]) -> Float[Tensor, ""]:
    """An unbiased estimate of the mean square of the derivatives of a map, over outputs: |J^T v|^2 with v normal."""
    point = point.requires_grad_()
    output = apply(point, twice=True)
    (product,) = torch.autograd.grad(output, point, torch.randn_like(output), create_graph=True)
    return product.square().mean()


def twice_differentiable_attention(
    query: Float[Tensor, "H B T D"],
    key: Float[Tensor, "H B K D"],
    value: Float[Tensor, "H B K D"],
    rel_pos: Float[Tensor, "H R D"],
    biases: Float[Tensor, "2 H D"],
    mask: Tensor | None,
    keep: Tensor | None = None,
) -> Float[Tensor, "H B T D"]:
    """`relative_attention` with a differentiable gradient, which costs more memory."""
    score = _attention_scores(query, key, rel_pos, biases)
    share = (score if mask is None else score.masked_fill(mask, -torch.inf)).softmax(-1)
    return (share if keep is None else share * keep) @ value


def attention_beside(
    query: Float[Tensor, "H B T D"],
    kv: Float[Tensor, "2 H B K D"],
    own: Float[Tensor, "2 H B T D"],
    rel_pos: Float[Tensor, "H R D"],
    biases: Float[Tensor, "2 H D"],
    mask: Tensor | None,
) -> Float[Tensor, "H B T D"]:
    """`relative_attention` in which each query sees its `own` key and value in place of those that `kv` has there."""
    (key, value), beyond = kv, kv.shape[3] - query.shape[2]
    other_key, other_value = own - kv[..., beyond:, :]
    score = _attention_scores(query, key, rel_pos, biases)
    here = score.diagonal(beyond, 2, 3)
    here += ((query + biases[0, :, None, None]) * other_key).sum(-1) * query.shape[3] ** -0.5
    share = (score if mask is None else score.masked_fill(mask, -torch.inf)).softmax(-1)
    return share @ value + share.diagonal(beyond, 2, 3)[..., None] * other_value


def _attention_scores(query: Tensor, key: Tensor, rel_pos: Tensor, biases: Tensor) -> Float[Tensor, "H B T K"]:
    queries, keys = query.shape[2], key.shape[2]
    row = torch.arange(queries - 1, -1, -1, device=query.device)[:, None] + torch.arange(keys, device=query.device)
    by_distance = (query + biases[1, :, None, None]) @ rel_pos[:, None].mT
    score = by_distance.gather(3, row.clamp(max=rel_pos.shape[1] - 1).expand(*query.shape[:2], -1, -1))
    return (score + (query + biases[0, :, None, None]) @ key.mT) * query.shape[3] ** -0.5


def _inject_input(step: BlockStep, injected: Float[Tensor, "B X"]) -> BlockStep:
    """A step that adds the input to (scaled) queries, keys and values."""
    mixer = step.mixer
    assert isinstance(mixer, AttentionStep)
    (bias, weight), inner = mixer.qkv, injected.shape[1] // 3
    scaled = torch.cat([injected[:, :inner] * mixer.rel_pos.shape[1] ** -0.5, injected[:, inner:]], 1)
    return replace(step, mixer=replace(mixer, qkv=(bias + scaled, weight)))


def _apply_mask(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def _layer_norm(x: Float[Tensor, "*S W"]) -> Float[Tensor, "*S W"]:
    return layer_norm(x, x.shape[-1:], eps=NORM_EPS)
