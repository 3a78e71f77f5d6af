"""Transformer-XL, Local-XL and convolutions: one distribution however the text is cut, causality, and how they are related."""

import math
from dataclasses import replace

import pytest
import torch
from marks import slow
from small_networks import CONFIGS, lively
from torch import nn

from esscher.bases.network import build_base, with_attention_span
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.networks.registry import NETWORKS
from esscher.networks.relative_attention_ops import relative_attention, sinusoids
from esscher.networks.token_mixers import AttentionContext, LightConv, RelativeAttention
from esscher.networks.transformer_config import TransformerXLConfig
from esscher.networks.transformer_xl import TransformerXLNetwork

SPACE = Space(7, 40)
SMALL = TransformerXLConfig(16, 2, 2, 24, memory=12)
STACKS = {
    "full": SMALL,
    "full, pre-norm": replace(SMALL, norm="pre", untied_biases=True),
    "full, clamped": replace(SMALL, clamp_len=3, attention_span=5),
    "local": replace(SMALL, mixers=("local",), spans=(3, 5)),
    "lightconv": replace(SMALL, mixers=("lightconv",), spans=(4,)),
    "dynamicconv": replace(SMALL, mixers=("dynamicconv",), spans=(3, 6)),
    "mixed": replace(SMALL, layers=4, mixers=("lightconv", "dynamicconv", "local", "full"), spans=(3, 4, 5)),
}


@pytest.fixture(params=STACKS)
def config(request) -> TransformerXLConfig:
    return STACKS[request.param]


def rows(length: int, count: int = 3, seed: int = 0) -> Sequences:
    tokens = torch.randint(7, (count, length), generator=torch.Generator().manual_seed(seed))
    return Sequences(tokens, torch.zeros(count, dtype=torch.long), torch.full((count,), length))


@pytest.mark.parametrize("pieces", [slow((40,)), slow((1,) * 40), (7, 1, 12, 20), (13, 0, 27)])
def test_a_stream_is_one_long_row_however_it_is_cut(config, pieces):
    base, x = lively(config, SPACE), rows(40)
    memory, actual, done = base.init_memory(3), [], 0
    for size in pieces:
        log_prob, memory = base.read(memory, x.tokens[:, done : done + size])
        actual.append(log_prob)
        done += size
    assert torch.allclose(torch.cat(actual, 1), base.log_probs(x), atol=1e-5)


def test_steps_are_the_scores_of_rows_longer_than_the_sight(config):
    base, x = lively(config, SPACE), rows(40)
    steps, state = base.begin(Sequences(x.tokens[:, :9], torch.tensor([2, 9, 5]), torch.tensor([2, 9, 5])))
    for offset in range(25):
        at = torch.tensor([2, 9, 5]) + offset
        token = x.tokens.gather(1, at[:, None])[:, 0]
        chosen = steps.gather(1, token[:, None])[:, 0]
        assert torch.allclose(chosen, base.log_probs(x).gather(1, at[:, None])[:, 0], atol=1e-5)
        steps, state = base.advance(state, token)
        assert not steps.is_inference()  # so that a loss may keep it for its gradient


def test_long_rows_are_read_in_segments_without_a_gradient(config, monkeypatch):
    base, x = lively(config, SPACE), rows(40)
    whole = base.log_probs(x).detach()
    monkeypatch.setattr("esscher.networks.transformer_xl.MAX_PASS_LENGTH", 7)
    with torch.no_grad():
        assert torch.allclose(base.log_probs(x), whole, atol=1e-5)
        state = base.begin(Sequences(x.tokens[:, :30], torch.full((3,), 30), torch.full((3,), 30)))[1]
        after = base.advance(state, x.tokens[:, 30])[0].gather(1, x.tokens[:, 31:32])[:, 0]
    assert torch.allclose(after, whole[:, 31], atol=1e-5)


def test_long_rows_in_training_mode_are_one_pass_without_a_gradient_too(monkeypatch):
    """Segments would remember no further than the memory, which may be less than the reach."""
    base, x = lively(replace(SMALL, memory=3, attention_span=20), SPACE).train(), rows(40)
    whole = base.log_probs(x).detach()
    monkeypatch.setattr("esscher.networks.transformer_xl.MAX_PASS_LENGTH", 7)
    with torch.no_grad():
        assert torch.allclose(base.log_probs(x), whole, atol=1e-5)


def test_a_position_depends_on_those_before_it_and_on_no_other(config):
    """By the gradient of each position's vector with respect to the input vectors."""
    network = lively(config, SPACE).network
    assert isinstance(network, TransformerXLNetwork)
    inputs = torch.randn(1, 20, config.width, generator=torch.Generator().manual_seed(1), requires_grad=True)
    network._embed = lambda tokens: inputs
    hidden = network._pass(torch.zeros(1, 20, dtype=torch.long), None, network._attention_context(False))[0]
    for position in range(20):
        (slope,) = torch.autograd.grad(hidden[0, position].square().sum(), inputs, retain_graph=True)
        size = slope[0].abs().sum(-1)
        assert float(size[position + 1 :].sum()) == 0 and float(size[max(0, position - 1) : position + 1].min()) > 0


def test_memory_has_no_gradient_and_training_sees_all_of_it(config):
    """With weights that stand still, segments that are learnt from are the long row too, as long as nothing is forgotten."""
    config = replace(config, clamp_len=None, attention_span=None, memory=40)
    base, x = lively(config, SPACE), rows(24)
    whole = base.log_probs(x)
    base.train()
    memory = base.init_memory(3)
    first, memory = base.read(memory, x.tokens[:, :11])
    second, memory = base.read(memory, x.tokens[:, 11:])
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-5)
    assert not any(part.requires_grad for part in memory)


def test_same_length_hides_what_is_further_than_the_memory():
    x = rows(24)
    for same_length in (True, False):
        base = lively(replace(SMALL, memory=4, same_length=same_length), SPACE).train()
        log_prob, _ = base.read(base.init_memory(3), x.tokens)
        windowed = base.eval().log_probs(x)
        assert torch.allclose(log_prob, windowed, atol=1e-5) is same_length


@pytest.mark.parametrize("causal", [True, False])
def test_the_gradient_is_that_of_the_plain_formula(causal):
    make = torch.Generator().manual_seed(0)
    queries, keys = 3, 7
    distances = keys if causal else keys + queries - 1
    shapes = [(2, 4, queries, 5), (2, 4, keys, 5), (2, 4, keys, 5), (2, distances, 5), (2, 2, 5)]
    inputs = [torch.randn(*shape, dtype=torch.double, generator=make).requires_grad_() for shape in shapes]
    keep = torch.rand(2, 4, queries, keys, dtype=torch.double, generator=make)
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    mask = (distance < 0)[None] if causal else None

    def plain(query, key, value, place, biases):
        here = place[:, (keys - 1 - distance).clamp(max=distances - 1)]
        score = torch.einsum("hntd,hnkd->hntk", query + biases[0, :, None, None], key)
        score = score + torch.einsum("hntd,htkd->hntk", query + biases[1, :, None, None], here)
        score = score / math.sqrt(5)
        score = score if mask is None else score.masked_fill(mask, -torch.inf)
        return (score.softmax(-1) * keep) @ value

    assert torch.allclose(relative_attention(*inputs, mask, keep), plain(*inputs))
    assert torch.autograd.gradcheck(lambda *x: relative_attention(*x, mask, keep), inputs)


def test_local_attention_is_full_attention_under_a_mask():
    """Chunks of 4: a position sees its chunk and the one before; in an encoder the one after too."""
    torch.manual_seed(0)
    local = RelativeAttention(SMALL, 4)
    x, biases = torch.randn(2, 18, 16), torch.randn(2, 2, 8)
    number = torch.arange(18) // 4
    apart = number[:, None] - number
    order = torch.arange(18)[:, None] - torch.arange(18)
    inside = torch.arange(18) < torch.tensor([[18], [11]])
    for causal in (True, False):
        context = AttentionContext(_places, False, causal=causal, inside=None if causal else inside)
        hidden = (apart < 0) | (apart > 1) | (order < 0) if causal else (apart.abs() > 1)
        hidden = hidden[None] if causal else hidden | ~inside[:, None]
        query = local.q_proj(x).unflatten(-1, (2, -1)).permute(2, 0, 1, 3)
        places = local._rel_pos(context, 17, 0 if causal else -17)
        key, value = local.kv(x)
        seen = relative_attention(query, key, value, places, biases, hidden)
        expected = local.o_proj(seen.permute(1, 2, 0, 3).flatten(2))
        actual = local(x, local.kv(x), biases, context)
        there = torch.ones_like(inside) if causal else inside
        assert torch.allclose(actual[there], expected[there], atol=1e-5)


def _places(most: int, least: int) -> torch.Tensor:
    return sinusoids(torch.arange(most, least - 1, -1), 16, torch.float32)


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions_are_local_attention_to_places_alone(dynamic):
    """With keys of 0 the score is v . r_(i-j), a learnt kernel, or q_i . r_(i-j), one made from the position.

    Chunks of C hold every kernel of up to C + 1 taps; one that is -inf beyond its taps is reproduced exactly, away from the
    start, where attention leaves out what is not there and a convolution takes zeros.
    """
    torch.manual_seed(1)
    kernel_size, chunk, heads, length = 4, 4, 2, 20
    convolution = LightConv(SMALL, kernel_size, dynamic=dynamic).double()
    if not dynamic:
        nn.init.normal_(convolution.kernel)
    x = torch.randn(2, length, 16, dtype=torch.double)
    (value,) = convolution.kv(x)
    seen = convolution(x, value[None], torch.empty(0), AttentionContext(_places, False))
    # one coordinate for each distance: r_d is the d-th unit vector, so a query or a bias is the kernel's logits
    distances, far = 2 * chunk, 1e9
    places = torch.eye(distances, dtype=torch.double).flip(0).expand(heads, -1, -1)
    if dynamic:
        logits = (
            convolution.kernel_proj(value.permute(1, 2, 0, 3).flatten(2))
            .view(2, length, heads, kernel_size)
            .permute(2, 0, 1, 3)
        )
    else:
        logits = convolution.kernel[:, None, None].expand(-1, 2, length, -1)
    by_distance = torch.cat([logits.flip(-1), logits.new_full((heads, 2, length, distances - kernel_size), -far)], -1)
    score = by_distance * math.sqrt(distances)  # the score is divided by it
    query = score if dynamic else torch.zeros_like(score)
    biases = torch.stack([torch.zeros(heads, distances), torch.zeros(heads, distances)]).double()
    biases[1] = 0 if dynamic else score[:, 0, 0]
    local = RelativeAttention(replace(SMALL, heads=heads, head_width=distances), chunk).double()
    local._rel_pos = lambda context, most, least: places
    kv = torch.stack([torch.zeros(heads, 2, length, distances, dtype=torch.double),
                         nn.functional.pad(value, (0, distances - value.shape[-1]))])  # fmt: skip
    attended = local._attention(query, kv, biases, AttentionContext(_places, False))[..., : value.shape[-1]]
    expected = convolution.o_proj(attended.permute(1, 2, 0, 3).flatten(2))
    assert torch.allclose(seen[:, kernel_size - 1 :], expected[:, kernel_size - 1 :], atol=1e-9)
    assert not torch.allclose(seen[:, : kernel_size - 1], expected[:, : kernel_size - 1], atol=1e-3)


def test_an_encoder_sees_all_of_its_row_and_nothing_of_the_padding(config):
    network = lively(config, SPACE).network
    points = [[1, 2, 3, 4, 5, 6, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    both = network.encode(sequences(points))
    alone = network.encode(sequences(points[1:]))
    assert torch.allclose(both[1, :7], alone[0], atol=1e-5)
    other = network.encode(sequences([[*points[0][:-1], 0]]))
    assert not torch.allclose(both[0, 8], other[0, 8], atol=1e-4)  # what comes later is seen


def test_dropout_acts_while_learning_only_and_the_variational_one_is_the_same_at_all_positions():
    for variational in (False, True):
        config = replace(SMALL, dropout=0.5, attention_dropout=0.2, variational=variational)
        base, x = lively(config, SPACE), rows(12)
        assert torch.equal(base.log_probs(x), base.log_probs(x))
        steps = base.begin(x.prompts())[0]
        base.train()
        assert not torch.equal(base.log_probs(x), base.log_probs(x))
        assert torch.allclose(base.begin(x.prompts())[0], steps)
        hidden = base.network.hidden(x)
        assert bool(((hidden == 0) == (hidden[:, :1] == 0)).all()) is variational


def test_settings_survive_a_file_and_wrong_ones_are_refused():
    config = STACKS["mixed"]
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in NETWORKS.to_dict(config).items()}
    assert NETWORKS.from_dict(plain) == config and plain["kind"] == "transformer-xl"
    for wrong in ({"mixers": ()}, {"spans": (0,)}, {"memory": -1}, {"heads": 3}):
        with pytest.raises(ValueError, match=r"mixers|chunk|memory|heads"):
            replace(SMALL, **wrong)


def test_biases_may_be_of_each_layer():
    tied, untied = (build_base(replace(SMALL, untied_biases=item), SPACE, rng=SeededRng(0)).network for item in (False, True))
    assert len(tied.biases) == 1 and len(untied.biases) == 2


def test_a_network_can_be_told_how_far_to_see():
    x = rows(24)
    near, far = (
        lively(replace(SMALL, memory=4, attention_span=attention_span, clamp_len=clamp_len), SPACE)
        for attention_span, clamp_len in ((None, None), (9, 6))
    )
    output = with_attention_span(near, attention_span=9, clamp_len=6)
    assert output.config == far.config
    assert torch.equal(output.log_probs(x), far.log_probs(x))
    with pytest.raises(ValueError, match=r"has no attention span.*leave attention_span and clamp_len out"):
        with_attention_span(lively(CONFIGS["lstm, tied"], SPACE), attention_span=3)


@pytest.mark.parametrize("training", [True, False])
def test_without_a_memory_each_segment_of_a_stream_stands_alone(config, training):
    base, x = lively(replace(config, memory=0, attention_span=None), SPACE).train(training), rows(20)
    fresh = base.init_memory(3)
    first, memory = base.read(fresh, x.tokens[:, :10])
    second, _ = base.read(memory, x.tokens[:, 10:])
    again, _ = base.read((x.tokens[:, 9], *fresh[1:]), x.tokens[:, 10:])
    assert torch.equal(second, again)
    assert torch.allclose(first, base.log_probs(rows(20))[:, :10], atol=1e-5)
