"""XLNet: what each stream sees, local attention, memory, and a base for every order of positions."""

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from random_targets import PROMPTS
from small_networks import CONFIGS, lively

from esscher.bases import network as module
from esscher.bases.network import NetworkBase, build_base, infilling_order, to_text_order, with_factorization_order
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.energies.config import EnergyConfig
from esscher.energies.network import build_energy
from esscher.networks.registry import NETWORKS
from esscher.networks.relative_attention_ops import relative_attention, sinusoids
from esscher.networks.token_mixers import (
    NEVER_VISIBLE,
    AttentionContext,
    OrderedPositions,
    PermutationMask,
    RelativeAttention,
)
from esscher.networks.transformer_config import TransformerXLConfig, XLNetConfig
from esscher.networks.xlnet import FactorizationOrder, XLNetNetwork
from esscher.samplers.ancestral import draw
from esscher.testing import check_base

SMALL = XLNetConfig(8, 2, 2, 16, memory=20)
LOCAL = replace(SMALL, layers=3, mixers=("local",), spans=(2, 3))
KINDS = {"full": SMALL, "local": LOCAL, "pre-norm": replace(SMALL, norm="pre")}
ORDERS = ([6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 2, 5, 1, 4])


@pytest.fixture(params=KINDS)
def config(request) -> XLNetConfig:
    return KINDS[request.param]


def network_of(base: NetworkBase) -> XLNetNetwork:
    assert isinstance(base.network, XLNetNetwork)
    return base.network


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("space", [Space(3, 4), Space(3, 4, eos=0)], ids=["fixed", "ends"])
def test_every_order_is_a_base(config, order, space):
    check_base(with_factorization_order(lively(config, space), order), PROMPTS)


def test_orders_differ_and_the_natural_one_is_the_plain_base(config):
    base, x = lively(config, Space(3, 4)), sequences([[0, 1, 2, 1], [2, 2, 0, 1]])
    natural = with_factorization_order(base, [0, 1, 2, 3]).log_probs(x)
    assert torch.allclose(natural, base.log_probs(x), atol=1e-6)
    actual = [
        natural,
        *(with_factorization_order(base, order).log_probs(x) for order in ([3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 3, 2])),
    ]
    for number, item in enumerate(actual):
        assert all(not torch.allclose(item, other, atol=1e-3) for other in actual[:number])


def test_a_target_never_influences_its_own_query(config):
    """By gradients with respect to the input vectors: a query has that of every token before it in the order, and no other."""
    network = network_of(lively(config, Space(7, 9)))
    given = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    network.embedding.forward = lambda tokens: given  # type: ignore[method-assign]
    make = torch.Generator().manual_seed(2)
    rank = torch.stack([torch.randperm(9, generator=make) for _ in range(2)])
    everything = torch.arange(9).expand(2, -1)
    for stream, allowance in (("query", 0), ("content", 1)):
        factorization_order = FactorizationOrder(rank, everything, stream)  # type: ignore[arg-type]
        hidden, _ = network.target_hidden(torch.zeros(2, 9, dtype=torch.long), factorization_order, None, 0)
        for place in range(9):
            (slope,) = torch.autograd.grad(hidden[:, place].square().sum(), given, retain_graph=True)
            size = slope.abs().sum(-1)
            may = rank < rank[:, place, None] + allowance
            assert float(size[~may].sum()) == 0
            near = may & ((torch.arange(9) // 3 - place // 3).abs() <= 1) & ((torch.arange(9) // 2 - place // 2).abs() <= 1)
            assert bool((size[near] > 0).all())


@pytest.mark.parametrize("wrong", ["own token seen", "right"])
def test_the_gradient_test_finds_a_query_that_sees_itself(wrong, monkeypatch):
    if wrong == "own token seen":
        loose = property(lambda own: own.keys.order_index[:, None] > own.queries.order_index[:, :, None] + 1)
        monkeypatch.setattr(PermutationMask, "masked", loose)
        with pytest.raises(AssertionError):
            test_a_target_never_influences_its_own_query(SMALL)
    else:
        test_a_target_never_influences_its_own_query(SMALL)


def test_local_attention_in_an_order_is_full_attention_under_a_mask():
    """In chunks with a past, for queries one after the other and for few that stand anywhere; and by a mask."""
    with SeededRng(0).fork_torch_rng():
        local = RelativeAttention(TransformerXLConfig(16, 1, 2), 4)
        x, few, biases = torch.randn(3, 18, 16), torch.randn(3, 5, 16), torch.randn(4, 2, 8)
        rank = torch.stack([torch.randperm(13) for _ in range(3)])
    make = torch.Generator().manual_seed(0)
    keys = OrderedPositions(
        torch.nn.functional.pad(rank, (5, 0), value=-NEVER_VISIBLE), None, torch.randint(3, (3, 18), generator=make)
    )
    targets = torch.stack([torch.randperm(13, generator=make)[:5] for _ in range(3)])
    where = torch.arange(-5, 13).expand(3, -1)
    assert keys.segment is not None
    cases = {
        "all": (x[:, 5:], OrderedPositions(rank, None, keys.segment[:, 5:]), where[:, 5:]),
        "some": (few, OrderedPositions(rank.gather(1, targets) - 1, targets, keys.segment[:, 5:].gather(1, targets)), targets),
    }
    for asked, queries, places in cases.values():
        context = AttentionContext(_places, False, causal=False, permutation_mask=PermutationMask(queries, keys, 5))
        actual = local(asked, local.kv(x), biases, context)
        output = PermutationMask(replace(queries, position=places), replace(keys, position=where), 5)
        masked = local(asked, local.kv(x), biases, replace(context, permutation_mask=output))
        assert torch.allclose(actual, masked, atol=1e-5)
        hidden = output.masked | ((places[:, :, None] // 4 - where[:, None] // 4).abs() > 1)
        assert queries.segment is not None
        plain = _plainly(local, asked, x, biases, hidden, places, where, (queries.segment, keys.segment))
        assert torch.allclose(actual, plain, atol=1e-5)


def _plainly(mixer, asked, x, biases, hidden, places, where, segments):
    """The formula of the score, pair by pair."""
    query = mixer.q_proj(asked).unflatten(-1, (2, -1)).permute(2, 0, 1, 3)
    key, value = mixer.kv(x)
    distance = places[:, :, None] - where[:, None]
    place = mixer.rel_pos_proj(sinusoids(distance.flatten(), 16, torch.float32)).view(*distance.shape, 2, 8)
    apart = (segments[0][:, :, None] != segments[1][:, None]).float()
    score = torch.einsum("hbtd,hbkd->hbtk", query + biases[0, :, None, None], key)
    score += torch.einsum("hbtd,btkhd->hbtk", query + biases[1, :, None, None], place)
    score += torch.einsum("hbtd,hd->hbt", query + biases[2, :, None, None], biases[3])[..., None] * apart
    share = (score / math.sqrt(8)).masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
    return mixer.o_proj((share @ value).permute(1, 2, 0, 3).flatten(2))


def _places(first: int, last: int) -> torch.Tensor:
    step = 1 if first < last else -1
    return sinusoids(torch.arange(first, last + step, step), 16, torch.float32)


def test_the_gradient_with_an_index_and_marks_is_that_of_the_plain_formula():
    make = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 3, 5), (2, 4, 7, 5), (2, 4, 7, 5), (2, 9, 5), (2, 2, 5), (2, 4, 3, 2)]
    given = [torch.randn(*shape, dtype=torch.double, generator=make).requires_grad_() for shape in shapes]
    index = torch.randint(9, (4, 3, 7), generator=make)
    mask = torch.rand(4, 3, 7, generator=make) < 0.3
    output = torch.randn(4, 7, 2, dtype=torch.double, generator=make)

    def ours(query, key, value, place, biases, asked):
        return relative_attention(query, key, value, place, biases, mask, None, index, (asked, output))

    def plain(query, key, value, place, biases, asked):
        score = torch.einsum("hntd,hnkd->hntk", query + biases[0, :, None, None], key)
        score = score + torch.einsum("hntd,hntkd->hntk", query + biases[1, :, None, None], place[:, index])
        score = (score + torch.einsum("hnts,nks->hntk", asked, output)) / math.sqrt(5)
        return score.masked_fill(mask, -torch.inf).softmax(-1) @ value

    assert torch.allclose(ours(*given), plain(*given))
    assert torch.autograd.gradcheck(ours, given)


def test_all_orders_together_speak_of_one_text():
    """Points of different orders are the same texts: put in place, each order's distribution is one over all texts."""
    base = lively(SMALL, Space(2, 3))
    texts = torch.tensor([[a, b, c] for a in range(2) for b in range(2) for c in range(2)])
    full = torch.full((8,), 3)
    for order in permutations(range(3)):
        x = Sequences(texts[:, list(order)], full - 3, full)
        assert torch.equal(to_text_order(x, order), texts)
        log_prob = with_factorization_order(base, order).log_probs(x).detach().sum(-1)
        assert float(log_prob.double().exp().sum()) == pytest.approx(1, abs=1e-6)


def test_known_tokens_come_first_and_gaps_are_drawn_after_them():
    base = lively(SMALL, Space(5, 2))
    order = infilling_order(6, gaps=[3, 1])
    assert order == [0, 2, 4, 5, 1, 3]
    filled = with_factorization_order(base, order)
    x, log_prob = draw(filled, prompts_of([[4, 3, 2, 1]]), 8, rng=SeededRng(1))
    text = to_text_order(x, order)
    assert torch.equal(text[:, [0, 2, 4, 5]], torch.tensor([[4, 3, 2, 1]]).expand(8, -1))
    assert torch.allclose(log_prob[0], filled.log_probs(x).double().sum(-1), atol=1e-5)


def test_a_blind_query_is_a_number_and_says_nothing_of_the_text():
    """Local attention may leave the first of an order without anything to see."""
    base = with_factorization_order(lively(KINDS["local"], Space(3, 8)), [7, 6, 5, 4, 3, 2, 1, 0])
    log_prob, _ = base.begin(prompts_of([[]]))
    assert bool(log_prob.isfinite().all())
    assert torch.allclose(base.log_probs(sequences([[1, 2, 0, 1, 2, 0, 1, 2]]))[0, 0], log_prob[0, 1], atol=1e-6)


@torch.no_grad()
def test_an_energy_begins_as_the_content_stream():
    """What is pretrained in any order starts the energy of another base with the same tokens."""
    pretrained, other = lively(SMALL, Space(3, 4)), lively(CONFIGS["gru, tied"], Space(3, 4))
    energy = build_energy(EnergyConfig("bidirectional"), other, start=pretrained, rng=SeededRng(0)).eval()
    x = sequences([[1, 2, 0, 1], [2, 1]])
    read = energy.encoder(x)
    assert torch.allclose(read.vectors, network_of(pretrained).encode(x), atol=1e-6)
    everything = torch.arange(5).expand(1, -1)
    inputs = torch.tensor([[3, 1, 2, 0, 1]])  # the opening, then the tokens
    factorization_order = FactorizationOrder(torch.zeros(1, 5, dtype=torch.long), everything, "content")
    assert torch.allclose(
        read.vectors[:1], network_of(pretrained).target_hidden(inputs, factorization_order, None, 0)[0], atol=1e-6
    )


def test_what_is_no_order_is_refused():
    base = lively(SMALL, Space(3, 4))
    with pytest.raises(ValueError, match="each position from 0 to 3 once"):
        with_factorization_order(base, [0, 1, 1, 3])
    with pytest.raises(ValueError, match="too short for points of 4"):
        with_factorization_order(base, [1, 0])
    with pytest.raises(ValueError, match="predicts in one order only"):
        with_factorization_order(build_base(TransformerXLConfig(8, 1, 2), Space(3, 4), rng=SeededRng(0)), [0, 1, 2, 3])
    with pytest.raises(ValueError, match="4 positions and was given a prompt of 2"):
        with_factorization_order(base, [0, 1, 2, 3]).begin(prompts_of([[1, 1]]))
    with pytest.raises(ValueError, match="0 to 3, not"):
        infilling_order(4, [7])
    with pytest.raises(ValueError, match="do not fill"):
        to_text_order(sequences([[1, 2]]), [0, 1, 2])


def test_an_order_is_no_copy(config):
    base = lively(config, Space(3, 4))
    other = with_factorization_order(base, [3, 2, 1, 0])
    assert isinstance(other.network, module.FixedOrderNetwork)
    assert {id(parameter) for parameter in other.parameters()} == {id(parameter) for parameter in base.parameters()}


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"mixers": ["lightconv"]}, {"cutoffs": [3]}, {"activation": "swish"}, {"eps": 0.0}, {"heads": 3}):
        with pytest.raises((ValueError, TypeError)):
            NETWORKS.from_dict({"kind": "xlnet", **wrong})
