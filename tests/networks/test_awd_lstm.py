"""AWD-LSTM: against outputs of the authors' own code, what training drops and penalises, initial weights, growth."""

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_networks import CONFIGS, SPACES, check_dropout, lively

from esscher.bases.network import build_base, build_network
from esscher.bases.scaling import parameter_count, scaled_to
from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.core.target import Tilted
from esscher.networks.network import PenalizedNetwork, StreamingNetwork
from esscher.networks.recurrent_config import AwdLstmConfig, LstmConfig
from esscher.networks.registry import NETWORKS
from esscher.objectives.likelihood import Likelihood

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
CALM = {"dropout": 0.0, "input_dropout": 0.0, "between_dropout": 0.0, "word_dropout": 0.0, "weight_dropout": 0.0}
CASES = {
    "mos": AwdLstmConfig(20, 3, 16, inner=24, **CALM, output="mos", components=5, floor=1e-8),
    "awd": AwdLstmConfig(16, 3, 16, inner=24, **CALM),
}
SPACE = Space(5, 4)


def ours(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under the authors' names, weights or gradients, under ours."""
    table = theirs["encoder.weight"]
    actual = {"embedding.weight": torch.cat([table, torch.zeros(1, table.shape[1])])}  # they have no BOS symbol
    actual["head.bias"] = theirs["decoder.bias"]
    for name, value in theirs.items():
        if name.startswith("rnns."):
            actual[name.replace("rnns", "cells")] = value
        if name.startswith(("latent.0.", "prior.")):
            actual["head." + name.replace("latent.0", "latent")] = value
    return actual


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden tensors are not here")
@pytest.mark.parametrize("name", CASES)
def test_equals_the_authors_code(name):
    """Outputs, states, the loss with its two penalties (their targets are the inputs), and all gradients."""
    tensors, network = load_file(GOLDEN / f"{name}.safetensors"), build_network(CASES[name], 60)
    state, slopes = (
        ours({key.removeprefix(top): value for key, value in tensors.items() if key.startswith(top)})
        for top in ("state/", "grads/")
    )
    network.load_state_dict(state)
    x = tensors["x"].T
    hidden, memory = network.train().read(x, network.init_memory(3))
    for number, part in enumerate(memory):
        assert torch.allclose(part, tensors[f"hidden/{number // 2}/{number % 2}"][0], atol=1e-5)
    out = hidden if name == "awd" else network.output(hidden).log_softmax(-1)
    assert torch.allclose(out.transpose(0, 1).reshape(tensors["out"].shape), tensors["out"], atol=1e-5)
    loss = -network.log_probs(hidden, x).mean() + network.penalty()
    assert float(loss.detach()) == pytest.approx(float(tensors["loss"]), abs=1e-6)
    loss.backward()
    # the released code takes the last word for padding where it is read, so only the output learns its vector (row 59)
    as_output = torch.autograd.grad(-network.log_probs(hidden.detach(), x).mean(), network.embedding.weight)[0]
    network.embedding.weight.grad[59] = as_output[59]
    for key, weight in network.named_parameters():
        assert torch.allclose(weight.grad, slopes[key], atol=1e-6), key


def drops(config: AwdLstmConfig, seed: int = 3):
    """Hidden vectors of one token read again and again, in training, and the base."""
    base = build_base(config, SPACE, rng=SeededRng(0)).train()
    with SeededRng(seed).fork_torch_rng():
        hidden, _ = base.network.read(torch.full((2, 6), 1), base.network.init_memory(2))
    return hidden.detach(), base.network


def test_what_is_dropped_of_a_row_is_dropped_at_all_its_positions():
    hidden, _ = drops(AwdLstmConfig(64, 1, 6, inner=7, **{**CALM, "dropout": 0.5}, tied=False))
    gone = hidden == 0
    assert bool((gone == gone[:, :1]).all()) and not torch.equal(gone[0], gone[1])
    assert 0.3 < float(gone.float().mean()) < 0.7


@pytest.mark.parametrize("place", ["dropout", "input_dropout", "between_dropout", "word_dropout", "weight_dropout"])
def test_every_dropout_acts_in_training_alone(place):
    base = check_dropout(AwdLstmConfig(8, 2, 6, inner=7, **{**CALM, place: 0.5}, tied=False), SPACE)
    x = sequences([[1, 2, 3, 4], [4, 3, 2]])
    calm = build_base(AwdLstmConfig(8, 2, 6, inner=7, **CALM, tied=False), SPACE, rng=SeededRng(0))
    assert torch.equal(base.log_probs(x), calm.log_probs(x))


def test_a_dropped_word_is_gone_wherever_it_stands():
    """The pass is that of a network some of whose embeddings are 0, and the others twice as large."""
    config = AwdLstmConfig(8, 1, 6, **{**CALM, "word_dropout": 0.5}, tied=False)
    network = build_base(config, SPACE, rng=SeededRng(0)).train().network
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 1, 0]])
    with SeededRng(1).fork_torch_rng():
        hidden, _ = network.read(tokens, network.init_memory(2))
    with SeededRng(1).fork_torch_rng():
        mask = torch.nn.functional.dropout(torch.ones(len(network.embedding.weight), 1), 0.5)
    assert set(mask[:3].flatten().tolist()) == {0.0, 2.0}
    with torch.no_grad():
        network.eval().embedding.weight.mul_(mask)
        assert torch.allclose(network.read(tokens, network.init_memory(2))[0], hidden, atol=1e-6)


def test_weight_drop_is_one_mask_a_pass_and_keeps_the_weight():
    """The pass is that of a network whose weights of the past are dropped by the mask, to the last position."""
    config = AwdLstmConfig(8, 1, 6, **{**CALM, "weight_dropout": 0.5}, tied=False)
    hidden, network = drops(config)
    kept = network.cells[0].weight_hh_l0.detach().clone()
    with SeededRng(3).fork_torch_rng():
        mask = torch.nn.functional.dropout(torch.ones_like(kept), 0.5)
    with torch.no_grad():
        network.eval().cells[0].weight_hh_l0.mul_(mask)
        assert torch.allclose(network.read(torch.full((2, 6), 1), network.init_memory(2))[0], hidden, atol=1e-6)
    actual, network = drops(config)
    assert torch.equal(network.cells[0].weight_hh_l0, kept) and torch.equal(actual, hidden)


def test_penalties():
    """Of padded rows what is padding is not counted; a penalty is told once, in training with a gradient only."""
    base = build_base(
        AwdLstmConfig(8, 2, 6, inner=7, **CALM, alpha=3.0, beta=5.0, tied=False), SPACE, rng=SeededRng(0)
    ).double()
    x = sequences([[1, 2, 3, 4], [4, 3]])
    outputs = [base.eval().network.hidden(sequences([row]))[0] for row in ([1, 2, 3, 4], [4, 3])]
    size = torch.cat(outputs).detach().square().mean()
    change = torch.cat([output[1:] - output[:-1] for output in outputs]).detach().square().mean()
    assert base.penalty() is None
    base.train()
    loss = Likelihood()(Tilted(base), x, rng=SeededRng(0))
    nll = -base.eval().log_probs(x).detach().sum() / 6
    assert loss.metrics["penalty"] == pytest.approx(float(3 * size + 5 * change))
    assert float(loss.value.detach()) == pytest.approx(float(nll + 3 * size + 5 * change))
    assert loss.metrics["nll"] == pytest.approx(float(nll)) and base.penalty() is None
    assert "penalty" not in Likelihood()(Tilted(base), x, rng=SeededRng(0)).metrics
    base.train()
    with torch.no_grad():
        assert "penalty" not in Likelihood()(Tilted(base), x, rng=SeededRng(0)).metrics
    smooth = Likelihood(label_smoothing=0.1)(Tilted(base), x, rng=SeededRng(0))
    assert smooth.metrics["penalty"] == pytest.approx(loss.metrics["penalty"])


def test_a_stream_is_penalised_too_and_a_network_can_be_copied_after_a_pass():
    base = build_base(CONFIGS["awd-lstm"], SPACE, rng=SeededRng(0)).train()
    tokens = torch.tensor([[1, 2, 3], [3, 2, 1]])
    length = torch.full((2,), 3)
    with_memory = WithMemory(base, base.init_memory(2))
    x = Sequences(tokens, torch.zeros_like(length), length)
    loss = Likelihood()(Tilted(with_memory), x, rng=SeededRng(0))
    assert (
        loss.metrics["penalty"] > 0
        and isinstance(base.network, StreamingNetwork)
        and isinstance(base.network, PenalizedNetwork)
    )
    base.log_probs(x)
    assert copy.deepcopy(base).penalty() is None and base.penalty() is not None
    plain = build_base(LstmConfig(width=4, layers=1), SPACE, rng=SeededRng(0)).train()
    plain.log_probs(x)
    assert plain.penalty() is None


def test_initial_weights():
    """Uniform up to 0.1, or the LSTM's own up to the root of its width; the seed is fixed, so there is no false alarm."""
    network = build_base(AwdLstmConfig(64, 2, 32, inner=100, tied=False), Space(300, 4), rng=SeededRng(0)).network
    assert not bool(network.head.bias.any())
    bounds = {"embedding.weight": 0.1, "head.weight": 0.1, "cells.0.weight_hh_l0": 0.1, "cells.1.weight_hh_l0": 0.125}
    for name, bound in bounds.items():
        highest = float(network.get_parameter(name).detach().abs().max())
        assert 0.97 * bound < highest <= bound, name


@pytest.mark.parametrize(("layers", "widths"), [(1, (6, 8)), (2, (6, 7, 8)), (4, (6, 7, 7, 7, 8))])
def test_widths_of_layers(layers, widths):
    config = AwdLstmConfig(8, layers, 6, inner=7, tied=False)
    assert config.widths == widths
    parts = build_base(config, SPACE, rng=SeededRng(0)).network.cells
    assert [(part.input_size, part.hidden_size) for part in parts] == list(pairwise(widths))


@pytest.mark.parametrize("config", [AwdLstmConfig(40, 3, inner=60), AwdLstmConfig(40, 2, 20, inner=60, output="mos")])
def test_grown(config):
    wanted = 2 * parameter_count(config, 500)
    actual = scaled_to(config, 500, wanted)
    assert actual.layers == config.layers and abs(parameter_count(actual, 500) - wanted) / wanted < 0.08


def test_published_sizes():
    """22 million on the Penn Treebank with 15 softmaxes."""
    published = AwdLstmConfig(620, 3, 280, inner=960, output="mos", components=15)
    assert parameter_count(published, 10_000) == pytest.approx(22e6, rel=0.03)
    assert parameter_count(AwdLstmConfig(), 10_000) == pytest.approx(24e6, rel=0.02)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"embedding": 20}, "vectors of one width: the output has 400, the embeddings 20"),
        ({"output": "mos", "embedding": 20, "latent_width": 30}, "output has 30, the embeddings 20"),
        ({"weight_dropout": 1.0}, "dropout rate"),
        ({"inner": 0}, "at least one unit"),
        ({"layers": 0}, "at least one unit and one layer"),
        ({"alpha": -1.0}, "alpha is at least 0, not -1"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict({"kind": "awd-lstm", **values})


def test_nothing_to_read():
    base = lively(CONFIGS["awd-lstm"], SPACES["fixed length"]).train()
    assert base.log_probs(sequences([[], []])).shape == (2, 0) and base.penalty() is None
