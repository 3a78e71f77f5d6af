"""DEQ-Transformer: a fixed point written again plainly, causal to the last bit, its gradient, what is not settled, layers."""

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from marks import slow
from small_networks import lively

from esscher.bases.network import build_base, with_attention_span, with_unrolled_layers
from esscher.bases.scaling import parameter_count, scaled_to
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.core.target import Tilted
from esscher.networks import deq
from esscher.networks.deq import DeqNetwork, SolverConfig, attention_beside, jacobian_penalty, twice_differentiable_attention
from esscher.networks.network import PenalizedNetwork, StreamingNetwork
from esscher.networks.registry import NETWORKS
from esscher.networks.relative_attention_ops import relative_attention
from esscher.networks.transformer_config import DeqConfig
from esscher.objectives.likelihood import Likelihood
from esscher.testing import check_base, check_stream

SPACE = Space(7, 20)
TIGHT = {"exact_tolerance": 1e-14, "exact_iterations": 400}
SMALL = DeqConfig(8, 2, 16, dropout=0.0, memory=40, jacobian_weight=0.0, **TIGHT)


def rows(length, count=2, seed=0):
    tokens = torch.randint(7, (count, length), generator=torch.Generator().manual_seed(seed))
    return Sequences(tokens, torch.zeros(count, dtype=torch.long), torch.full((count,), length))


def norm(x):
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()


def layer_plainly(network, tokens, z, attention_span=None):
    """f(z) of one row, position by position and head by head."""
    (layer,), width, heads = network.blocks, 8, 2
    size, actual = width // heads, []
    inputs = [layer.input_injection_proj(network.embedding.weight[token] * math.sqrt(width)) for token in tokens]
    speed = 10_000.0 ** -(torch.arange(width // 2, dtype=torch.double) * 2 / width)
    for i in range(len(tokens)):
        seen = []
        for head in range(heads):
            part = slice(size * head, size * (head + 1))
            query = (layer.mixer.q_proj.weight @ z[i] + inputs[i][:width])[part]
            scores, values = [], []
            for j in range(0 if attention_span is None else max(0, i - attention_span), i + 1):
                both = layer.mixer.kv_proj.weight @ z[j] + inputs[j][width:]
                place = torch.cat([((i - j) * speed).sin(), ((i - j) * speed).cos()])
                content, position = network.biases[0, :, head]
                score = (query + content) @ both[part] + (query + position) @ (layer.mixer.rel_pos_proj.weight @ place)[part]
                scores.append(score / math.sqrt(size))
                values.append(both[width:][part])
            seen.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        x = norm(z[i] + layer.mixer.o_proj.weight @ torch.cat(seen))
        inner = (layer.up_proj.weight @ x + layer.up_proj.bias).clamp(min=0)
        actual.append(norm(x + layer.down_proj.weight @ inner + layer.down_proj.bias))
    return torch.stack(actual)


def steady(config):
    """A base whose layer makes less of itself than of its input, so that it has a fixed point whatever is dropped."""
    base = lively(config, SPACE).double()
    with torch.no_grad():
        for name, weight in base.network.blocks.named_parameters():
            weight.mul_(1.0 if ".input_injection_proj." in name else 0.5)
    return base


def biased(config, space=SPACE):
    """A lively base none of whose biases is 0."""
    base = lively(config, space).double()
    with SeededRng(4).fork_torch_rng(), torch.no_grad():
        for weight in base.parameters():
            if not bool(weight.any()):
                weight.normal_(std=0.5)
    return base


def iterated(network, tokens, times, attention_span=None):
    z = torch.zeros(len(tokens), 8).double()
    for _ in range(times):
        z = layer_plainly(network, tokens, z, attention_span)
    return z


@pytest.mark.parametrize("attention_span", [None, 2])
def test_equals_a_layer_applied_until_nothing_changes(attention_span):
    network = biased(replace(SMALL, attention_span=attention_span)).network
    tokens = [7, 0, 3, 1, 1]
    with torch.no_grad():
        actual, _ = network.read(torch.tensor([tokens]), network.init_memory(1))
        expected = iterated(network, tokens, 120, attention_span)
    assert torch.allclose(actual[0], expected, atol=1e-10) and network.last_solve.converged


@pytest.mark.parametrize("unrolled", [1, 3])
def test_unrolled_it_is_tied_layers(unrolled):
    base = biased(replace(SMALL, unrolled=unrolled))
    tokens = [7, 0, 3, 1, 1]
    actual, memory = base.network.read(torch.tensor([tokens]), base.network.init_memory(1))
    assert torch.allclose(actual[0], iterated(base.network, tokens, unrolled), atol=1e-12) and len(memory) == 1 + unrolled
    solving = with_unrolled_layers(base, 0)
    assert solving.config == SMALL and solving.network is base.network
    assert torch.allclose(
        solving.network.read(torch.tensor([tokens]), solving.init_memory(1)[1:])[0], biased_found(tokens), atol=1e-10
    )
    with pytest.raises(ValueError, match="Only a DEQ-Transformer can be unrolled"):
        with_unrolled_layers(lively(NETWORKS.from_dict({"kind": "gru", "width": 8}), SPACE), 2)


def biased_found(tokens):
    network = biased(SMALL).network
    return network.read(torch.tensor([tokens]), network.init_memory(1))[0]


WRONG_LAYERS = {
    "keys without the input": lambda self, z, share: self.mixer.kv(z) + 0 * share.sum(),
    "only the input": lambda self, z, share: kv(self, 0 * z, share),
}
kv = deq._DeqLayer.kv


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_LAYERS)
def test_wrong_layers_are_caught(wrong, monkeypatch):
    monkeypatch.setattr(deq._DeqLayer, "kv", WRONG_LAYERS[wrong])
    with pytest.raises(AssertionError):
        test_equals_a_layer_applied_until_nothing_changes(None)


def change_later_tokens(tolerance):
    """The vectors of the first positions when all later tokens are others; solved loosely, so that a leak would be large."""
    network = lively(replace(SMALL, exact_tolerance=tolerance), SPACE).double().network
    x, other = rows(16).tokens, rows(16, seed=1).tokens
    other[:, :8] = x[:, :8]
    with torch.no_grad():
        return [network.read(tokens, network.init_memory(2))[0][:, :8] for tokens in (x, other)]


def test_a_vector_is_the_same_to_the_last_bit_whatever_comes_later():
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-6):
        item, other = change_later_tokens(tolerance)
        assert torch.equal(item, other), f"tolerance {tolerance}: off by {float((item - other).abs().max())}"


def stops_together(change, order):
    return change.amax().expand_as(change)


def mixes_rows(past):
    """Coefficients of a whole row, as published."""
    flat = [tuple(part.flatten(1)[:, None] for part in pair) for pair in past]
    return mixed(flat).view_as(past[0][0])


mixed = deq._anderson_step


@pytest.mark.parametrize(("name", "wrong"), [("_max_dependent_change", stops_together), ("_anderson_step", mixes_rows)])
def test_leaks_through_the_solver_are_caught(name, wrong, monkeypatch):
    monkeypatch.setattr(deq, name, wrong)
    with pytest.raises(AssertionError):
        test_a_vector_is_the_same_to_the_last_bit_whatever_comes_later()


def test_a_position_depends_on_those_before_it_and_on_no_other():
    """By the gradient of each position's vector with respect to the input vectors, loosely solved."""
    network = lively(replace(SMALL, exact_tolerance=1e-2), SPACE).double().network
    inputs = torch.randn(1, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(1), requires_grad=True)
    network._embed = lambda tokens: inputs
    hidden = network._pass(torch.zeros(1, 8, dtype=torch.long), None, network._attention_context(False))[0]
    for position in range(8):
        (slope,) = torch.autograd.grad(hidden[0, position].square().sum(), inputs, retain_graph=True)
        size = slope[0].abs().sum(-1)
        assert float(size[position + 1 :].sum()) == 0 and float(size[: position + 1].min()) > 0


def slopes_of(loss, base):
    return torch.autograd.grad(loss, list(base.network.parameters()), allow_unused=True)


def check_gradient():
    """Of every weight, against autograd through a long iteration of the same layer."""
    base = lively(SMALL, SPACE).double()
    x = torch.tensor([[7, 0, 3, 1, 1], [7, 6, 2, 2, 5]])
    weight = torch.randn(2, 5, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    actual, _ = base.network.read(x, base.network.init_memory(2))
    through = with_unrolled_layers(copy.deepcopy(base), 150)
    expected, _ = through.network.read(x, through.network.init_memory(2))
    assert torch.allclose(actual, expected, atol=1e-10)
    slopes, right = (slopes_of((item * weight).sum(), of) for item, of in ((actual, base), (expected, through)))
    assert base.network.last_adjoint.converged
    for (name, _), slope, other in zip(base.network.named_parameters(), slopes, right, strict=True):
        assert (slope is None) == (other is None), name
        if slope is not None:
            assert torch.allclose(slope, other, atol=1e-9 * max(1.0, float(other.abs().max()))), name


def test_the_gradient_is_that_of_the_fixed_point():
    check_gradient()


def no_solve(ctx, slope):
    """The gradient of the last application alone."""
    ctx.settings[3](deq.SolverResult(1, 0.0, True))
    return slope, None, None


def not_transposed(ctx, slope):
    made, solve, order, report = ctx.settings

    def forward_instead(weight):
        again = weight.detach().requires_grad_()
        (back,) = torch.autograd.grad(made, ctx.point, again, retain_graph=True, create_graph=False)
        return slope + back.flip(-1)

    weight, actual = deq.fixed_point(forward_instead, slope, solve, order)
    report(replace(actual, converged=True))
    return weight, None, None


def loosely(ctx, slope):
    made, _, order, report = ctx.settings
    ctx.settings = made, SolverConfig(1e-1, 400), order, report
    return backward(ctx, slope)


backward = deq._Implicit.backward


@pytest.mark.parametrize("wrong", [no_solve, slow(not_transposed), slow(loosely)])
def test_wrong_adjoints_are_caught(wrong, monkeypatch):
    monkeypatch.setattr(deq._Implicit, "backward", staticmethod(wrong))
    with pytest.raises(AssertionError):
        check_gradient()


def test_a_linear_map_is_solved_exactly_in_either_direction():
    make = torch.Generator().manual_seed(0)
    drawn = torch.randn(5, 5, dtype=torch.double, generator=make) * 0.25
    other, given = (torch.randn(*shape, dtype=torch.double, generator=make) for shape in ((5, 5), (3, 6, 5)))

    def apply(z):
        return given + z @ drawn.T + torch.nn.functional.pad(z, (0, 0, 1, 0))[:, :-1] @ other.T

    solve = SolverConfig(1e-15, 300)
    actual, how = deq.fixed_point(apply, torch.zeros_like(given), solve, "before")
    for t in range(6):
        before = actual[:, t - 1] @ other.T if t else 0
        expected = torch.linalg.solve(torch.eye(5).double() - drawn, (given[:, t] + before).T).T
        assert torch.allclose(actual[:, t], expected, rtol=1e-12, atol=1e-12)
    plain = deq.fixed_point(apply, torch.zeros_like(given), replace(solve, anderson_history=1), "before")[1]
    assert how.converged and how.iterations < plain.iterations  # mixing is worth it
    turned = deq.fixed_point(lambda z: apply(z.flip(1)).flip(1), torch.zeros_like(given), solve, "after")[0]
    assert torch.equal(turned.flip(1), actual)
    alone = deq.fixed_point(lambda z: apply(z)[:1], torch.zeros_like(given)[:1], replace(solve, tolerance=1e-3), "before")
    loose = deq.fixed_point(apply, torch.zeros_like(given), replace(solve, tolerance=1e-3), "before")
    assert torch.allclose(alone[0][0], loose[0][0], atol=1e-14)  # other rows do not say when to stop


@pytest.mark.parametrize("causal", [True, False])
def test_plain_attention_is_relative_attention(causal):
    make = torch.Generator().manual_seed(0)
    queries, keys = 3, 7
    distances = keys if causal else keys + queries - 1
    shapes = [(2, 4, queries, 5), (2, 4, keys, 5), (2, 4, keys, 5), (2, distances, 5), (2, 2, 5)]
    inputs = [torch.randn(*shape, dtype=torch.double, generator=make) for shape in shapes]
    keep = torch.rand(2, 4, queries, keys, dtype=torch.double, generator=make)
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    mask = (distance < 0)[None] if causal else None
    assert torch.allclose(twice_differentiable_attention(*inputs, mask, keep), relative_attention(*inputs, mask, keep))


def test_attention_beside_is_relative_attention_with_one_key_changed():
    make = torch.Generator().manual_seed(0)
    queries, keys = 3, 7
    shapes = [(2, 4, queries, 5), (2, 2, 4, keys, 5), (2, 2, 4, queries, 5), (2, keys, 5), (2, 2, 5)]
    query, kv, own, places, biases = (torch.randn(*shape, dtype=torch.double, generator=make) for shape in shapes)
    mask = (torch.arange(keys - queries, keys)[:, None] < torch.arange(keys))[None]
    actual = attention_beside(query, kv, own, places, biases, mask)
    for t in range(queries):
        changed = kv.clone()
        changed[:, :, :, keys - queries + t] = own[:, :, :, t]
        expected = relative_attention(query, *changed, places, biases, mask)
        assert torch.allclose(actual[:, :, t], expected[:, :, t], atol=1e-12)


def several_fixed_points(seed, **more):
    """A base whose layer has several fixed points at some positions."""
    config = DeqConfig(8, 2, 32, dropout=0.0, memory=40, exact_tolerance=1e-13, **more)
    base = build_base(config, SPACE, rng=SeededRng(seed)).eval().double()
    with SeededRng(seed + 1).fork_torch_rng(), torch.no_grad():
        for weight in base.parameters():
            weight.copy_(torch.randn(weight.shape) * 0.4)
    return base


def together(apply, start, solver):
    return deq.fixed_point(apply, start, solver, "before")


@torch.no_grad()
def largest_gap(base, x):
    """Between the log-probabilities of steps and of scores."""
    actual, state = base.begin(x.prompts())
    scores, gap = base.log_probs(x), 0.0
    for t in range(x.tokens.shape[1]):
        gap = max(gap, float((actual.gather(1, x.tokens[:, t : t + 1])[:, 0] - scores[:, t]).abs().max()))
        if t + 1 < x.tokens.shape[1]:
            actual, state = base.advance(state, x.tokens[:, t])
    return gap


@pytest.mark.parametrize("seed", [11, 22])
def test_scores_are_of_the_fixed_points_that_steps_find(seed, monkeypatch):
    """Also in pieces, in blocks of any size, and whatever other rows there are. All positions solved together settle too, and
    elsewhere."""
    base, x = several_fixed_points(seed, exact_iterations=400), rows(12)
    assert largest_gap(base, x) < 1e-10
    whole, memory, pieces = base.log_probs(x).detach(), base.init_memory(2), []
    for piece in torch.split(x.tokens, 5, 1):
        score, memory = base.read(memory, piece)
        pieces.append(score.detach())
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-10)
    alone = base.log_probs(Sequences(x.tokens[1:], x.start[1:], x.stop[1:])).detach()
    assert torch.allclose(alone, whole[1:], atol=1e-10)
    monkeypatch.setattr(deq, "BLOCK", 5)
    assert torch.allclose(base.log_probs(x).detach(), whole, atol=1e-10)
    monkeypatch.setattr(deq, "solve_in_order", together)
    assert largest_gap(base, x) > 0.1 and base.network.last_solve.converged


def test_more_iterations_make_steps_scores_and_too_few_are_told():
    """In single precision, to the tolerance that the settings state."""
    x = rows(12)
    for iterations in (6, 200):
        base = lively(replace(SMALL, exact_tolerance=1e-6, exact_iterations=iterations), SPACE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gap = largest_gap(base, x)
        told = sorted(str(item.message) for item in caught)
        if iterations == 200:
            assert gap < 2e-5 and not told
        else:
            assert [message.split(" did not")[0] for message in told] == [
                "The fixed point of a score",
                "The fixed point of a step",
            ]
            assert all("draws can differ from their scores" in item and "raise exact_iterations" in item for item in told)


def test_the_jacobian_penalty_is_the_mean_square_of_derivatives():
    """Estimated from 500 normal vectors against the derivatives themselves: a false alarm is beyond 5 standard errors."""
    network = lively(SMALL, SPACE).double().network
    x = rows(3, 1).tokens
    with torch.no_grad():
        network.read(x, network.init_memory(1))
    kept = {}

    def keep(apply, point):
        kept["apply"], kept["point"] = apply, point
        return jacobian_penalty(apply, point)

    network.settings = replace(network.settings, jacobian_weight=2.0, jacobian_probability=1.0, tolerance=1e-10, iterations=300)
    with pytest.MonkeyPatch.context() as patch, SeededRng(0).fork_torch_rng():
        patch.setattr(deq, "jacobian_penalty", keep)
        network.train().read(x, network.init_memory(1))
        once = network.penalty()
        apply, point = kept["apply"], kept["point"].detach()
        whole = torch.autograd.functional.jacobian(apply, point).view(24, 24)
        draws = torch.stack([jacobian_penalty(apply, point).detach() for _ in range(500)])
    error = float(draws.std()) / math.sqrt(500)
    assert abs(float(draws.mean()) - float(whole.square().sum()) / 24) < 5 * error
    assert float(once.detach()) > 0 and network.penalty() is None
    slopes = torch.autograd.grad(once, list(network.blocks.parameters()), allow_unused=True)
    assert sum(slope is not None and bool(slope.any()) for slope in slopes) >= 6


def test_the_penalty_is_paid_in_a_share_of_training_passes():
    base = lively(
        replace(SMALL, jacobian_weight=2.0, jacobian_probability=0.5, iterations=300, adjoint_iterations=300), SPACE
    ).train()
    with SeededRng(0).fork_torch_rng():
        output = ["penalty" in Likelihood()(Tilted(base), rows(4), rng=SeededRng(0)).metrics for _ in range(40)]
    assert 8 < sum(output) < 32  # the seed is fixed
    assert isinstance(base.network, PenalizedNetwork) and isinstance(base.network, StreamingNetwork)
    base.log_probs(rows(4))
    assert copy.deepcopy(base).penalty() is None


@pytest.mark.parametrize("place", ["dropout", "attention_dropout"])
def test_masks_hold_for_a_solve(place):
    """So that it settles; and they are others in the next."""
    config = replace(SMALL, **{place: 0.1}, tolerance=1e-9, iterations=400, adjoint_iterations=400)
    base = steady(config).train()
    with SeededRng(2).fork_torch_rng():
        first, second = base.log_probs(rows(6)), base.log_probs(rows(6))
    assert base.network.last_solve.converged and not torch.equal(first, second)
    with SeededRng(2).fork_torch_rng():
        assert torch.equal(base.log_probs(rows(6)), first)
    first.sum().backward()
    assert base.network.last_adjoint.converged
    prefix_model = base.begin(rows(6).prompts())[0]
    assert torch.equal(base.eval().begin(rows(6).prompts())[0], prefix_model)


def test_masks_of_each_iteration_are_caught(monkeypatch):
    def fresh(self, z, **other):
        masks = tuple(None if item is None else torch.nn.functional.dropout(torch.ones_like(item), 0.3) for item in self.masks)
        return apply(replace(self, masks=masks), z, **other)

    apply = deq._LayerMap.__call__
    monkeypatch.setattr(deq._LayerMap, "__call__", fresh)
    with pytest.raises((AssertionError, UserWarning)):
        test_masks_hold_for_a_solve("dropout")


def test_what_does_not_settle_is_warned_of_once_for_each_kind():
    base = lively(replace(SMALL, iterations=2, adjoint_iterations=2, exact_iterations=2, tolerance=1e-9), SPACE)
    x = rows(5)
    with pytest.warns(
        UserWarning, match=r"of a score did not converge: after 2 iterations.*Jacobian penalty, or begin with unr"
    ):
        base.log_probs(x).detach()
    with pytest.warns(UserWarning, match="of a step did not converge"):
        base.advance(base.begin(x.prompts())[1], x.tokens[:, 0])
    with pytest.warns(UserWarning, match="of a training pass did not converge"):
        loss = base.train().log_probs(x).sum()
    with pytest.warns(UserWarning, match="of a gradient did not converge"):
        loss.backward()
    assert (base.network.last_solve.iterations, base.network.last_adjoint.iterations) == (2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base.log_probs(x).sum().backward()


@pytest.mark.slow
def test_a_stream_that_is_learnt_from_is_one_long_row():
    """What is remembered has no gradient, but its keys and values follow the weights."""
    config = replace(SMALL, tolerance=1e-13, iterations=400, adjoint_iterations=400)
    base, x = lively(config, SPACE).double(), rows(12)
    whole = base.log_probs(x).detach()
    check_stream(base, tolerance=1e-11)
    base.train()
    memory, actual = base.init_memory(2), []
    for piece in (x.tokens[:, :5], x.tokens[:, 5:6], x.tokens[:, 6:]):
        score, memory = base.read(memory, piece)
        actual.append(score)
    assert torch.allclose(torch.cat(actual, 1), whole, atol=1e-11)
    assert not any(part.requires_grad for part in memory) and memory[2].shape == (2, 12, 8 + 16)
    (slope,) = torch.autograd.grad(actual[1].sum(), base.network.blocks[0].mixer.kv_proj.weight)
    assert bool(slope.isfinite().all()) and bool(slope.any())


def test_a_memory_that_forgets_its_first_position_is_caught(monkeypatch):
    def forgets(self, asked, share, old, context, masks):
        return build(self, asked, share, old[:, :, :, 1:] if old.dim() == 5 else old, context, masks)

    build = DeqNetwork._map
    monkeypatch.setattr(DeqNetwork, "_map", forgets)
    with pytest.raises(AssertionError, match="a stream in pieces"):
        check_stream(lively(SMALL, SPACE).double())


def test_wrong_steps_are_caught(monkeypatch):
    monkeypatch.setattr(deq, "_inject_input", lambda step, share: given(step, torch.cat([0 * share[:, :8], share[:, 8:]], 1)))
    with pytest.raises(AssertionError, match="stepping must equal scoring"):
        check_base(lively(SMALL, Space(3, 3)).double(), [[], [1]])


given = deq._inject_input


def test_single_precision_steps_are_scores_to_1e_5():
    base = lively(replace(SMALL, exact_tolerance=1e-6), Space(7, 20))
    x, steps, state = rows(12), *base.begin(rows(12).prompts())
    whole = base.log_probs(x).detach()
    for t in range(12):
        assert torch.allclose(steps.gather(1, x.tokens[:, t : t + 1])[:, 0], whole[:, t], atol=1e-5)
        steps, state = base.advance(state, x.tokens[:, t])


@pytest.mark.parametrize("unrolled", [0, 2])
def test_an_encoder_sees_all_of_its_row_and_nothing_of_the_padding(unrolled):
    network = lively(replace(SMALL, unrolled=unrolled), SPACE).double().network
    points = [[1, 2, 3, 4, 5, 6, 1, 2], [1, 2, 3, 4]]
    both, alone = network.encode(sequences(points)), network.encode(sequences(points[1:]))
    assert torch.allclose(both[1, :5], alone[0], atol=1e-10)
    other = network.encode(sequences([[*points[0][:-1], 0]]))
    assert not torch.allclose(both[0, 6], other[0, 6], atol=1e-4)


def test_how_far_it_sees_can_be_told():
    near, far = (
        lively(replace(SMALL, memory=4, attention_span=attention_span, clamp_len=clamp_len), SPACE)
        for attention_span, clamp_len in ((None, None), (9, 6))
    )
    output = with_attention_span(near, attention_span=9, clamp_len=6)
    assert output.config == far.config and torch.equal(output.log_probs(rows(12)), far.log_probs(rows(12)))


def test_distances_are_clamped_in_training_too():
    config, x = replace(SMALL, tolerance=1e-13, iterations=400), rows(9)
    for clamp_len in (None, 2):
        base = lively(replace(config, clamp_len=clamp_len), SPACE).double()
        scores = base.log_probs(x).detach()
        assert torch.allclose(base.train().log_probs(x).detach(), scores, atol=1e-10)
    assert not torch.allclose(lively(config, SPACE).double().log_probs(x), scores, atol=1e-3)


@pytest.mark.parametrize("unrolled", [0, 2])
def test_gradients_are_finite_at_length_1(unrolled):
    config = replace(
        SMALL, unrolled=unrolled, jacobian_weight=1.0, jacobian_probability=1.0, iterations=300, adjoint_iterations=300
    )
    base = lively(config, SPACE).train()
    loss = base.log_probs(sequences([[2]])).sum()
    penalty = base.penalty()
    (loss if penalty is None else loss + penalty).backward()
    assert (penalty is None) == bool(unrolled)
    slopes = [weight.grad for weight in base.parameters() if weight.grad is not None]
    assert len(slopes) > 6 and all(bool(slope.isfinite().all()) for slope in slopes)
    assert base.log_probs(sequences([[], []])).shape == (2, 0)


def test_sizes():
    """98 million were published for WikiText-103, with an adaptive input and softmax."""
    published = DeqConfig(cutoffs=(19_997, 39_997, 199_997), div_value=4)
    assert parameter_count(published, 267_735) == pytest.approx(98e6, rel=0.03)
    config = DeqConfig(40, 2, feedforward=80)
    wanted = 2 * parameter_count(config, 500)
    assert abs(parameter_count(scaled_to(config, 500, wanted), 500) - wanted) / wanted < 0.08
    assert build_base(SMALL, SPACE, rng=SeededRng(0)).network.blocks[0].input_injection_proj.bias.any().item() is False


def test_settings_survive_a_dictionary():
    assert (
        NETWORKS.from_dict(NETWORKS.to_dict(SMALL)) == SMALL
        and NETWORKS.to_dict(SMALL)["kind"] == "deq"
        and "layers" not in NETWORKS.to_dict(SMALL)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unrolled": -1}, r"unrolled is at least 0"),
        ({"iterations": 0}, r"^iterations is at least 1, not 0"),
        ({"anderson_history": 0}, r"anderson_history is at least 1"),
        ({"tolerance": 0.0}, r"Tolerances are above 0"),
        ({"jacobian_weight": -1.0}, r"jacobian_weight is at least 0"),
        ({"jacobian_probability": 2.0}, r"jacobian_probability lies in"),
        ({"heads": 9}, r"width 700 cannot be shared by 9 heads"),
        ({"memory": -1}, r"memory is at least 0, not -1"),
        ({"layers": 2}, r"Unknown key 'layers'"),
        ({"dropout": 1.0}, r"dropout rate"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict({"kind": "deq", **values})
