"""Energies that are networks: the laws for every kind, what each can see, where they start, and their limits."""

import pytest
import torch
from causal_models import tiny_base, tiny_model
from energies.encoders import MAKERS, OWN, SPACE, built, decode, encoder_folder, own_base
from random_targets import PROMPTS, random_automaton

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.config import EnergyConfig
from esscher.energies.encoders import Encoded, PretrainedEncoder, load_encoder, with_dropout
from esscher.energies.network import NetworkEnergy, build_energy
from esscher.exact.enumeration import enumerate_points
from esscher.networks.transformer import AttentionMask, TransformerNetwork
from esscher.testing import check_energy, every_outcome

EVERY = enumerate_points(SPACE, prompts_of(PROMPTS))
X = EVERY.rows(SeededRng(0).permutation(len(EVERY))[:24])
EMPTY = sequences([[], [], [1, 0]], [[], [2, 1], []])  # points of no tokens are legal rows


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@pytest.mark.parametrize("kind", MAKERS)
def test_a_start_at_the_base(kind, root):
    base, energy = MAKERS[kind](root)
    assert float(energy(X).detach().std()) > 0.01
    assert energy(X.rows(slice(0, 0))).shape == (0,)
    Tilted(base, energy)
    with torch.no_grad():
        for weight in energy.head.parameters():
            weight.zero_()
    assert energy(X).abs().max() == 0


@pytest.mark.parametrize("pooling", ["mean", "sum", "last", "whole", "first"])
def test_laws_of_every_pooling(pooling):
    check_energy(built(own_base("transformer, rotary"), pooling=pooling), X, tolerance=1e-4)


def test_wrong_encoders_are_caught(monkeypatch):
    base = own_base("transformer, rotary")
    energy = built(base)
    right = energy.encoder.forward

    def padding_counts(x):
        read = right(x)
        return Encoded(read.vectors, torch.ones_like(read.whole), torch.ones_like(read.whole))

    monkeypatch.setattr(energy.encoder, "forward", padding_counts)
    with pytest.raises(AssertionError, match=r"padding must not|other rows of the batch"):
        check_energy(energy, X)
    monkeypatch.undo()

    def padding_is_seen(self, x):
        return self._pass(torch.nn.functional.pad(x.tokens, (1, 0), value=3), None, AttentionMask(causal=False))

    monkeypatch.setattr(TransformerNetwork, "encode", padding_is_seen)
    with pytest.raises(AssertionError, match=r"padding must not|other rows of the batch"):
        check_energy(energy, X)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="dropout"):
        check_energy(built(own_base("transformer, rotary"), dropout=0.5).train(), X)


@pytest.mark.parametrize("base", ["transformer, rotary", "lstm, vectors", "gpt2"])
def test_a_unidirectional_encoder_starts_as_the_base(base):
    """Its vector before each token is the base's, so the base's logits come out of it."""
    base = tiny_base(base) if base == "gpt2" else own_base(base)
    encoder = built(base, kind="unidirectional").encoder
    vectors = encoder(X).vectors[:, : X.tokens.shape[1]]
    output = base.model.lm_head if hasattr(base, "model") else base.network.output
    inside = torch.arange(X.tokens.shape[1]) < X.stop[:, None]
    assert torch.allclose(output(vectors)[inside], base.logits(X)[inside], atol=1e-4)


@pytest.mark.parametrize("base", ["transformer, rotary", "gpt2", "llama", "gemma2"])
def test_who_sees_what(base):
    """Changing the last token changes the first vector of a bidirectional kind only."""
    base = own_base(base) if "transformer" in base else tiny_base(base)
    item, other = sequences([[1, 2, 1, 1]], [[2, 1]]), sequences([[1, 2, 1, 2]], [[2, 1]])
    ahead = {}
    for kind in ("unidirectional", "bidirectional"):
        encoder = built(base, kind=kind).encoder
        gap = (encoder(item).vectors - encoder(other).vectors).abs().amax(-1)[0]
        ahead[kind] = bool((gap[:-1] > 1e-4).all())
        assert gap[-1] > 1e-4 and (ahead[kind] or gap[:-1].max() < 1e-5)
    assert ahead == {"unidirectional": False, "bidirectional": True}


def test_with_one_layer_the_last_place_sees_the_same_from_both():
    """The last position sees all of its row either way, so with one layer both encoders agree there, and only there."""
    base = own_base("transformer, rotary, untied")
    both = [built(base, kind=kind, pooling="last") for kind in ("unidirectional", "bidirectional")]
    assert torch.allclose(both[0](X), both[1](X), atol=1e-5)
    both = [built(base, kind=kind, pooling="mean") for kind in ("unidirectional", "bidirectional")]
    assert float((both[0](X) - both[1](X)).detach().abs().max()) > 0.01


def test_mean_and_sum_are_of_a_score_for_each_token_of_the_point():
    x = sequences([[1, 2, 0], [2, 1, 1, 2]], [[2], []])
    base = own_base("transformer, learned")
    energy = built(base, kind="unidirectional", pooling="sum")
    head, vectors = energy.head, energy.encoder(x).vectors
    scores = head(vectors)[..., 0] - head.bias
    expected = torch.stack([scores[0, 2:5].sum(), scores[1, 1:5].sum()])
    assert torch.allclose(energy(x), expected + head.bias, atol=1e-5)
    mean = built(base, kind="unidirectional", pooling="mean")
    assert torch.allclose(mean(x), expected / torch.tensor([3.0, 4.0]) + head.bias, atol=1e-5)


def test_an_encoder_of_text_is_that_of_transformers(root):
    """Pooling the whole is the mean of last_hidden_state over all columns, a text at a time; the point is a part of it."""
    from transformers import AutoModel, AutoTokenizer

    folder = encoder_folder(root)
    base = own_base("gru, tied")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    x = sequences([[1, 2, 0], [2, 2, 1, 1], [0]], [[2, 1], [], [1]])
    whole, point, first = (
        built(base, kind="encoder", encoder=folder, pooling=how) for how in ("whole", "mean", "first")
    )  # prompt and point, CLS and SEP; point and SEP; CLS
    parts = {whole: [slice(0, 6), slice(0, 6), slice(0, 3)], point: [slice(3, 5), slice(1, 6), slice(2, 3)], first: [[0]] * 3}
    texts = ["cat good good cat", "cat cat good good", "good"]
    states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    assert [len(state) for state in states] == [6, 6, 3]
    parts[point][0] = slice(3, 6)
    for energy, columns in parts.items():
        expected = torch.cat([energy.head(state[place].mean(0)) for state, place in zip(states, columns, strict=True)])
        assert torch.allclose(energy(x), expected, atol=1e-4)


def test_a_long_text_loses_its_beginning(root):
    energy = built(own_base("gru, tied"), kind="encoder", encoder=encoder_folder(root), pooling="mean")
    long, longer, other = (sequences([[2, 1, 2, 2]], [[1] * count]) for count in (20, 30, 20))
    assert torch.allclose(energy(long), energy(longer), atol=1e-5)
    other.tokens[0, -2] = 1
    assert not torch.allclose(energy(long), energy(other), atol=1e-3)


def test_a_shared_encoder_owns_nothing_of_its_base():
    base = own_base("gru, tied").train()
    energy = built(base, kind="shared")
    assert {name for name, _ in energy.named_parameters()} == {"head.weight", "head.bias"}
    energy(X).sum().backward()
    assert all(weight.grad is None for weight in base.parameters()) and energy.head.weight.grad is not None
    assert base.training and base.network.training
    energy.train(), energy.eval()
    assert base.training


def test_building_leaves_the_base_alone_and_is_repeatable():
    base = own_base("transformer, learned")
    before = {name: weight.clone() for name, weight in base.named_parameters()}
    item, same, other = (build_energy(EnergyConfig(network=OWN), base, rng=SeededRng(seed)) for seed in (1, 1, 2))
    weights = [energy.encoder.network.embedding.weight for energy in (item, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    copy = build_energy(EnergyConfig(), base, rng=SeededRng(1))
    with torch.no_grad():
        copy.encoder.network.embedding.weight.add_(1)
    assert all(torch.equal(weight, before[name]) for name, weight in base.named_parameters())
    assert copy.encoder.network.config.max_positions == base.config.max_positions + 1
    copied = copy.encoder.network.position.weight
    assert torch.equal(copied[:-1], base.network.position.weight) and torch.equal(copied[-1], copied[-2])


def test_a_bound_holds():
    energy = built(own_base("transformer, rotary"), bound=0.5)
    assert 0.3 < float(energy(X).detach().abs().max()) <= 0.5
    assert float(built(own_base("transformer, rotary"))(X).detach().abs().max()) > 1


def test_the_longest_sequence_is_read_and_a_longer_one_refused():
    base = own_base("transformer, learned")  # 7 positions
    for kind in ("unidirectional", "bidirectional"):
        energy = built(base, kind=kind)
        assert energy(sequences([[1, 1, 1, 2]], [[1, 2, 1]])).shape == (1,)
        with pytest.raises(ValueError, match=r"has 8 positions and was given 8 tokens.*more max_positions"):
            energy(sequences([[1, 1, 1, 2]], [[1, 2, 1, 1]]))
    shared = built(base, kind="shared")
    with pytest.raises(ValueError, match=r"has 7 positions and was given 7 tokens"):
        shared(sequences([[1, 1, 1, 2]], [[1, 2, 1]]))


def test_errors(root, tmp_path):
    network, automaton = own_base("gru, tied"), random_automaton(SPACE)

    def refused(message: str, base, **settings: object) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            build_energy(EnergyConfig(**settings), base, rng=SeededRng(0))

    refused("reads from left to right only", network, kind="bidirectional")
    refused("has no network with hidden states", automaton, kind="unidirectional")
    refused("has no network with hidden states", automaton, kind="shared")
    refused("LoRA adapters are for pretrained", own_base("transformer, rotary"), lora=2)
    refused("needs the folder of one", automaton, kind="encoder")
    refused("no encoder folder", automaton, kind="encoder", encoder=str(tmp_path / "none"))
    refused("holds no readable encoder", automaton, kind="encoder", encoder=str(tmp_path))
    refused("needs the base's decoder", automaton, kind="encoder", encoder=encoder_folder(root))
    refused("has 9 tokens and the base has 3", automaton, kind="encoder", encoder=encoder_folder(root), on="tokens")
    encoder = load_encoder(encoder_folder(root))
    with pytest.raises(ValueError, match="looks ahead"):
        PretrainedEncoder(encoder, 2, bidirectional=False)
    with pytest.raises(ValueError, match="cannot be made to look ahead"):
        PretrainedEncoder(_Deaf(tiny_model("gpt2").base_model), 1, bidirectional=True)
    with pytest.raises(ValueError, match="drawn from a seed"):
        list(every_outcome(lambda rng: build_energy(EnergyConfig(network=OWN), automaton, rng=rng)))
    with pytest.raises(ValueError, match="energy reads 3 tokens and the base speaks 4"):
        Tilted(random_automaton(Space(4, 3)), built(own_base("transformer, rotary")))


class _Deaf(torch.nn.Module):
    """A decoder that ignores its mask."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids)


def test_text_energies_know_no_vocabulary_of_the_base(root):
    energy = built(own_base("gru, tied"), kind="encoder", encoder=encoder_folder(root))
    assert not hasattr(energy, "vocab_size") and isinstance(energy, NetworkEnergy)
    assert decode([[1, 2, 0]]) == ["good cat"]
    x = sequences([[1, 2, 0], [1, 2]])  # the end symbol is no text
    assert torch.allclose(*energy(Sequences(x.tokens, x.start, x.stop)), atol=1e-5)


def test_a_window_reads_the_end_of_the_prompt_only():
    base = own_base("transformer, rotary")
    near, whole = built(base, window=1), built(base)
    near.load_state_dict(whole.state_dict())
    check_energy(near, X, tolerance=1e-4)
    check_energy(near, EMPTY, tolerance=1e-4)
    points, last = [[1, 2, 0], [2, 0]], [[2], [1]]
    long = sequences(points, [[1, 2, 2], [2, 1]])
    assert torch.allclose(near(long), whole(sequences(points, last)), atol=1e-6)
    assert not torch.allclose(near(long), whole(long), atol=1e-4)
    nothing = built(base, window=0)
    nothing.load_state_dict(whole.state_dict())
    assert torch.allclose(nothing(long), whole(sequences(points)), atol=1e-6)


def test_dropout_of_an_encoder_is_as_stated(root):
    folder = encoder_folder(root)
    for rate in (0.0, 0.3):
        model = with_dropout(load_encoder(folder), rate)
        assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {rate}


def test_an_energy_may_start_from_another_model_of_the_same_tokens():
    base, other = own_base("transformer, rotary"), own_base("transformer, learned")
    energy = build_energy(EnergyConfig(), base, start=other, rng=SeededRng(0))
    assert torch.equal(energy.encoder.network.state_dict()["embedding.weight"], other.network.state_dict()["embedding.weight"])
    with pytest.raises(ValueError, match="does not start from a base"):
        build_energy(EnergyConfig("shared"), base, start=other, rng=SeededRng(0))
    foreign = build_base(base.config, Space(7, 4, eos=0), rng=SeededRng(0))
    with pytest.raises(ValueError, match="the model to start from has 7"):
        build_energy(EnergyConfig(), base, start=foreign, rng=SeededRng(0))
