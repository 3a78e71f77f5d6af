"""Every network as a base: the BOS symbol, limits, dropout, initial weights, and a Transformer written again plainly."""

import math

import pytest
import torch
from random_targets import PROMPTS
from small_networks import CONFIGS, SPACES, check_padding, lively

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.exact.enumeration import enumerate_points
from esscher.heads import chunked_log_softmax
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.registry import NETWORKS
from esscher.networks.transformer_config import TransformerConfig
from esscher.samplers.ancestral import draw
from esscher.testing import check_base, every_outcome


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_first_tokens_are_looked_up_or_multiplied_alike(monkeypatch):
    """The recurrent step has two forms of its first layer."""
    monkeypatch.setattr("esscher.networks.recurrent.INPUT_TABLE_MAX_VOCAB", 0)
    for kind in ("lstm, vectors", "gru, vectors"):
        check_base(lively(CONFIGS[kind], SPACES["end symbol"]), PROMPTS)


def test_draws_over_every_outcome():
    """No statistics: all outcomes of the dice give the scores of all points, compaction of finished rows included."""
    space = Space(2, 3, eos=0)
    base = lively(CONFIGS["transformer, rotary"], space).double()
    runs = list(every_outcome(lambda rng: draw(base, prompts_of([[1], []]), 1, rng=rng)))
    assert len(runs) == 16
    for probability, (x, log_prob) in runs:
        assert math.log(probability) == pytest.approx(float(log_prob.sum()))
        assert torch.allclose(log_prob[:, 0], base.log_probs(x).sum(-1), atol=1e-12)


class Counting:
    """A base that counts the rows it reads, and those it advances."""

    def __init__(self, base):
        self.base, self.space, self.read, self.advanced = base, base.space, 0, 0

    def begin(self, prompts):
        self.read += len(prompts)
        return self.base.begin(prompts)

    def advance(self, state, token):
        self.advanced += len(token)
        return self.base.advance(state, token)

    def select(self, state, index):
        return self.base.select(state, index)

    def log_probs(self, x):
        return self.base.log_probs(x)


def test_a_prompt_is_read_once_and_a_finished_point_stops_costing(monkeypatch):
    monkeypatch.setattr("esscher.samplers.ancestral.rows_at_once", lambda space: 64)
    base = Counting(build_base(CONFIGS["transformer, rotary"], Space(3, 40, eos=0), rng=SeededRng(0)))
    x, log_prob = draw(base, prompts_of([[1, 2, 1], []]), 150, rng=SeededRng(1))
    assert base.read == 2
    tokens = int(x.lengths.sum())
    assert tokens < 0.2 * 300 * 40 and base.advanced < 1.4 * tokens
    assert torch.allclose(log_prob.view(-1), base.log_probs(x).double().sum(-1), atol=1e-4)


def test_scoring_in_pieces_changes_nothing(config, monkeypatch):
    base = lively(config, SPACES["fixed length"])
    x = enumerate_points(base.space, prompts_of(PROMPTS))
    whole = base.log_probs(x)
    monkeypatch.setattr(chunked_log_softmax, "LOGITS_IN_CACHE", 20)
    monkeypatch.setattr(chunked_log_softmax, "LEAST_ROWS", 1)
    assert torch.allclose(base.log_probs(x), whole, atol=1e-6)


def test_the_opening_symbol_is_no_token(config):
    """The empty prompt gives another distribution than any prompt of one token, the end symbol and padding too."""
    base = lively(config, SPACES["end symbol"])
    first = base.begin(prompts_of([[], [0], [1], [2]]))[0].exp()
    assert all(float((first[0] - first[row]).abs().max()) > 1e-3 for row in (1, 2, 3))


def test_padding_may_hold_anything(config):
    check_padding(lively(config, SPACES["end symbol"]), [[], [1]])


@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_score(config, rows):
    base = lively(config, SPACES["fixed length"])
    x = sequences([[]] * rows)
    assert base.log_probs(x).shape == (rows, 0) and base.logits(x).shape == (rows, 0, 3)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_sequences_longer_than_the_network(positions):
    base = build_base(TransformerConfig(8, 1, 2, 16, positions=positions, max_positions=6), Space(3, 4), rng=SeededRng(0))
    base.log_probs(sequences([[1] * 6]))
    with pytest.raises(ValueError, match=r"6 positions.*sequence of 7 tokens.*max_positions = 7"):
        base.log_probs(sequences([[1] * 7]))
    base.begin(prompts_of([[1, 1]]))
    with pytest.raises(ValueError, match=r"6 positions.*prompt of 3 tokens with a point of up to 4.*max_positions = 7"):
        base.begin(prompts_of([[], [1, 1, 1]]))


def test_a_full_state_says_so():
    base = build_base(CONFIGS["transformer, rotary"], Space(3, 2), rng=SeededRng(0))
    _, state = base.begin(prompts_of([[1]]))
    _, state = base.advance(state, torch.tensor([1]))
    with pytest.raises(ValueError, match="state is full"):
        base.advance(state, torch.tensor([1]))


@pytest.mark.parametrize("config", [GruConfig(12, 2, 0.5, 5), TransformerConfig(8, 2, 2, 16, 0.5)], ids=NETWORKS.kind_of)
def test_dropout_acts_on_scores_in_training_only(config):
    base = build_base(config, SPACES["fixed length"], rng=SeededRng(0)).train()
    x, prompts = enumerate_points(base.space, prompts_of(PROMPTS)), prompts_of(PROMPTS)
    assert not torch.equal(base.log_probs(x), base.log_probs(x))
    with SeededRng(3).fork_torch_rng():
        first = base.log_probs(x)
    with SeededRng(3).fork_torch_rng():
        assert torch.equal(base.log_probs(x), first)
    stepped = base.begin(prompts)[0]
    assert torch.equal(base.eval().begin(prompts)[0], stepped)
    check_base(base, PROMPTS)


def test_initial_weights_follow_the_seed_and_nothing_else(config):
    space = SPACES["fixed length"]
    before = torch.random.get_rng_state()
    first, again, other = (build_base(config, space, rng=SeededRng(seed)).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    pointers = [value.data_ptr() for value in first.values()]
    assert len(set(pointers)) == len(pointers), "a checkpoint must not hold one memory under two names"


def test_weights_need_a_seed():
    def build(rng):
        build_base(CONFIGS["gru, one-hot"], SPACES["fixed length"], rng=rng)

    with pytest.raises(ValueError, match="pass Seeded"):
        list(every_outcome(build))


def test_transformer_equals_its_equations():
    """The same weights through attention written out, rotary positions as multiplication of complex numbers."""
    config = TransformerConfig(12, 2, 2, 16)
    base = lively(config, Space(5, 6)).double()
    net, x = base.network, torch.tensor([[3, 1, 4, 1, 0, 2]])
    stream = net.embedding.weight[torch.tensor([5, *x[0, :-1]])]
    speed = 10_000.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
    turn = torch.polar(torch.ones(6, 3, dtype=torch.float64), torch.arange(6, dtype=torch.float64)[:, None] * speed)

    def norm(y, weight):
        return weight * y / (y.square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).sqrt()

    def turned(y):  # [6, D = 6]
        both = torch.complex(y[:, :3], y[:, 3:]) * turn
        return torch.cat([both.real, both.imag], -1)

    for block in net.blocks:
        asked = norm(stream, block.attention_norm.weight) @ block.qkv_proj.weight.T
        seen = []
        for head in range(2):
            q, k, v = (asked[:, 12 * part + 6 * head :][:, :6] for part in range(3))
            score = turned(q) @ turned(k).T / 6**0.5
            score = score.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
            seen.append(score.softmax(-1) @ v)
        stream = stream + torch.cat(seen, -1) @ block.o_proj.weight.T
        inner = norm(stream, block.feedforward_norm.weight) @ block.up_proj.weight.T
        stream = stream + (inner * torch.special.ndtr(inner)) @ block.down_proj.weight.T
    expected = norm(stream, net.final_norm.weight) @ net.embedding.weight[:5].T
    actual = base.logits(Sequences(x, torch.tensor([0]), torch.tensor([6])))[0]
    assert torch.allclose(actual, expected, atol=1e-6)  # the angles are kept in float32


def test_configs_travel_as_dictionaries(config):
    assert NETWORKS.from_dict(NETWORKS.to_dict(config)) == config
    assert NETWORKS.to_dict(config)["kind"] == NETWORKS.kind_of(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kind": "rnn"},
            "Unknown kind of network 'rnn'; the known kinds are lstm, gru, awd-lstm, enas, trellisnet, transformer",
        ),
        ({"kind": None}, "Unknown kind of network None"),
        ({"kind": "gru", "head": 3}, "Unknown key 'head'; the known keys are width, output"),
        ({"kind": "gru", "cell": "lstm"}, "Unknown key 'cell'"),
        ({"kind": "transformer", "width": 10, "heads": 4}, "width 10 cannot be shared by 4 heads"),
        ({"kind": "transformer", "width": 12, "heads": 4}, "width of a head is even, not 3"),
        ({"kind": "lstm", "tied": True}, "Tied weights need embedding = width = 200"),
        ({"kind": "lstm", "dropout": 1.0}, "dropout rate"),
        ({"kind": "lstm", "layers": 0}, "at least one unit and one layer"),
        ({"kind": "lstm", "embedding": 0}, "at least width 1"),
    ],
)
def test_wrong_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict(values)


def test_without_a_kind_it_is_the_default_one():
    assert NETWORKS.from_dict({"width": 8}) == TransformerConfig(8)
