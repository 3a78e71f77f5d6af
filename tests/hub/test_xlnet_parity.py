"""XLNet against that of `transformers`: the same outputs from random weights, whatever is asked of it, and back again."""

from dataclasses import replace

import pytest
import torch
from marks import slow
from transformers import XLNetConfig as TheirConfig
from transformers import XLNetLMHeadModel

from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import load_base
from esscher.hub.xlnet import from_transformers, save_xlnet, to_transformers
from esscher.networks import token_mixers
from esscher.networks.transformer_config import XLNetConfig
from esscher.networks.xlnet import FactorizationOrder, XLNetNetwork

ROWS, LENGTH, TARGETS = 4, 12, 5


def their_model(**settings) -> XLNetLMHeadModel:
    inputs = {"vocab_size": 11, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24, "dropout": 0.0, "mem_len": 9}
    with SeededRng(1).fork_torch_rng():
        model = XLNetLMHeadModel(TheirConfig(**{**inputs, "initializer_range": 0.3, **settings})).eval()
        torch.nn.init.normal_(model.lm_loss.bias)
        return model


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, their segments, ranks of an order in which some are seen by all, and targets among the others."""
    make = torch.Generator().manual_seed(seed)
    tokens = torch.randint(11, (ROWS, LENGTH), generator=make)
    segment = torch.tensor([0] * 5 + [1] * 6 + [2]).expand(ROWS, -1)
    order = torch.stack([torch.randperm(LENGTH, generator=make) for _ in range(ROWS)])
    rank = torch.where(order < 4, -1, order)
    return tokens, segment, rank, order.argsort(1)[:, -TARGETS:].sort(1).values


def theirs(model: XLNetLMHeadModel, tokens, segment, rank, targets, mems):
    """Their words for the same: a target sees what is below its rank, another token also what is at its rank."""
    mapping = torch.nn.functional.one_hot(targets, LENGTH).float()
    is_target = mapping.sum(1, keepdim=True).mT
    hidden = rank[:, None] > rank[:, :, None] - is_target
    return model(tokens, perm_mask=hidden.float(), target_mapping=mapping, token_type_ids=segment, mems=mems, use_mems=True)


def gap(base: NetworkBase, model: XLNetLMHeadModel, *, with_segments: bool = True) -> float:
    """The largest difference over three segments in a row, of logits and of memories."""
    network, memory, mems, gaps = base.network, None, None, []
    assert isinstance(network, XLNetNetwork)
    for number in range(3):
        tokens, segment, rank, targets = given(number)
        factorization_order = FactorizationOrder(rank, targets, segment=segment if with_segments else None)
        hidden, memory = network.target_hidden(tokens, factorization_order, memory, LENGTH)
        actual = theirs(model, tokens, segment if with_segments else None, rank, targets, mems)
        mems = actual.mems
        gaps.append((network.output(hidden) - actual.logits[..., : base.space.vocab_size]).abs().max())
        gaps += [(mine.transpose(0, 1) - other).abs().max() for mine, other in zip(memory[1:], mems, strict=True)]
    return float(torch.stack(gaps).max())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        slow({"ff_activation": "relu"}),
        slow({"ff_activation": "gelu_new"}),
        {"clamp_len": 3},
        {"mem_len": 30},
        {"tie_word_embeddings": False},
    ],
)
@torch.no_grad()
def test_outputs_and_memories_are_those_of_transformers(settings):
    model = their_model(**settings)
    base = from_transformers(model, Space(11, 12))
    assert gap(base, model) < 4e-6 and gap(base, model, with_segments=False) < 4e-6  # of logits of about 3
    assert float(model.lm_loss.bias.abs().max()) > 1


@torch.no_grad()
def test_small_weights_agree_to_a_millionth():
    model = their_model(initializer_range=0.02)
    assert gap(from_transformers(model, Space(11, 12)), model) < 1e-6


@torch.no_grad()
def test_reversed_halves_are_those_of_transformers():
    model = their_model(bi_data=True)
    network = from_transformers(model, Space(11, 12)).network
    assert isinstance(network, XLNetNetwork)
    tokens, segment, rank, targets = given(5)
    factorization_order = FactorizationOrder(rank, targets, reversed_half=True, segment=segment)
    logits = network.output(network.target_hidden(tokens, factorization_order, None, 0)[0])
    expected = theirs(model, tokens, segment, rank, targets, None).logits
    assert torch.allclose(logits, expected, atol=4e-6)
    straight = network.output(network.target_hidden(tokens, replace(factorization_order, reversed_half=False), None, 0)[0])
    assert torch.allclose(straight[:2], logits[:2], atol=1e-6) and not torch.allclose(straight[2:], logits[2:], atol=1e-2)


@torch.no_grad()
def test_content_is_that_of_transformers():
    """Without targets their model gives the content stream, padding hidden: what an encoder gives here."""
    model = their_model()
    base = from_transformers(model, Space(11, 12))
    x = sequences([[3, 1, 4, 1, 5], [9, 2, 6]])
    ids = torch.tensor([[1, 3, 1, 4, 1, 5], [1, 9, 2, 6, 0, 0]])  # 1 is their <s>, our bos
    mask = torch.tensor([[1.0] * 6, [1.0] * 4 + [0.0] * 2])
    expected = model.transformer(ids, attention_mask=mask).last_hidden_state
    actual = base.network.encode(x)
    assert torch.allclose(actual[mask.bool()], expected[mask.bool()], atol=4e-6)


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_what_is_saved_here_loads_there_and_comes_back(tmp_path, tied):
    config = XLNetConfig(16, 2, 2, 24, memory=9, tied=tied, activation="gelu-tanh")
    base = build_base(config, Space(11, 12, eos=3), rng=SeededRng(4)).eval()
    save_xlnet(tmp_path, base)
    model = XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    assert gap(base, model) < 1e-6
    tokens, segment, rank, targets = given(0)
    probability = theirs(model, tokens, segment, rank, targets, None).logits.softmax(-1)
    assert float(probability[..., 11:].sum()) == 0
    again, _ = load_base(tmp_path)
    assert isinstance(again, NetworkBase) and again.space == base.space and again.config == base.config
    for (name, mine), other in zip(base.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_another_end_symbol_may_be_named(tmp_path):
    tokenizer = train_tokenizer("character", ["abc"])
    base = build_base(XLNetConfig(16, 1, 2), Space(tokenizer.vocab_size, 12, tokenizer.eos), rng=SeededRng(4))
    save_xlnet(tmp_path, base, tokenizer)
    again, words = load_base(tmp_path, eos="b")
    assert words is not None and again.space == replace(base.space, eos=words.eos) != base.space


@torch.no_grad()
def test_wrong_versions_are_caught(monkeypatch):
    model = their_model()
    base = from_transformers(model, Space(11, 12))
    network = base.network
    assert isinstance(network, XLNetNetwork)
    for row in range(4):  # each bias matters
        kept = network.biases[0, row].clone()
        network.biases[0, row] = 0
        assert gap(base, model) > 1e-4
        network.biases[0, row] = kept
    assert gap(base, model) < 4e-6
    monkeypatch.setattr(
        token_mixers.PermutationMask,
        "masked",
        property(lambda own: own.keys.order_index[:, None] >= own.queries.order_index[:, :, None]),
    )
    assert gap(base, model) > 1e-3


def test_what_transformers_has_not_is_refused():
    local = build_base(XLNetConfig(16, 1, 2, mixers=("local",)), Space(11, 12), rng=SeededRng(0))
    with pytest.raises(ValueError, match="only full"):
        to_transformers(local)
    with pytest.raises(ValueError, match="norm 'pre'"):
        to_transformers(build_base(XLNetConfig(16, 1, 2, norm="pre"), Space(11, 12), rng=SeededRng(0)))
    with pytest.raises(ValueError, match="has 11 tokens and the space 9"):
        from_transformers(their_model(), Space(9, 12))
    with pytest.raises(ValueError, match="'swish'"):
        from_transformers(their_model(ff_activation="swish"), Space(11, 12))
