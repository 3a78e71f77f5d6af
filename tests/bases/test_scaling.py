"""The controls of residual models: a locally normalised correction (RALM) and one larger model (BALM)."""

import pytest
import torch
from causal_models import tiny_base
from random_targets import PROMPTS
from small_networks import CONFIGS, lively

from esscher.bases import logits
from esscher.bases.logits import LogitBase
from esscher.bases.network import build_base
from esscher.bases.scaling import causal_lm_with_extra_layers, parameter_count, scaled_to, with_extra_layers
from esscher.bases.wrappers import ProductOfExperts
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import GruConfig, LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import draw
from esscher.testing import check_base
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

SPACE = Space(3, 4, eos=0)


@pytest.mark.parametrize("kind", ["gru, tied", "gpt2"])
def test_a_corrected_base_obeys_the_laws_in_pieces(kind, monkeypatch):
    base = tiny_base(kind) if kind == "gpt2" else lively(CONFIGS[kind], SPACE)
    both = ProductOfExperts(base, lively(CONFIGS["transformer, rotary"], SPACE))
    assert isinstance(both, LogitBase)
    monkeypatch.setattr(logits, "LOGITS_PER_CHUNK", 30)
    check_base(both, PROMPTS[:2])


def test_it_is_the_product_normalised_at_each_step():
    item, other = lively(CONFIGS["gru, tied"], SPACE), lively(CONFIGS["lstm, vectors"], SPACE)
    both = ProductOfExperts(item, other)
    product = item.begin(prompts_of([[1]]))[0].exp() * other.begin(prompts_of([[1]]))[0].exp()
    assert torch.allclose(both.begin(prompts_of([[1]]))[0].exp(), product / product.sum(), atol=1e-6)
    unnormalised = item.log_probs(enumerate_points(SPACE)) + other.log_probs(enumerate_points(SPACE))
    assert not torch.allclose(both.log_probs(enumerate_points(SPACE)), unnormalised, atol=0.1)


def test_only_the_correction_learns_and_it_learns_the_data():
    """Trained by likelihood, the product comes near the data's own base; the base it corrects stays as it was."""
    truth, base = lively(CONFIGS["gru, one-hot"], SPACE, seed=5), lively(CONFIGS["gru, tied"], SPACE)
    before = [weight.clone() for weight in base.parameters()]
    data, _ = draw(truth, prompts_of(PROMPTS), 500, rng=SeededRng(0))
    both = ProductOfExperts(base, build_base(GruConfig(16, 1), SPACE, rng=SeededRng(1)))
    assert {name.partition(".")[0] for name, _ in both.named_parameters()} == {"correction"}
    every = enumerate_points(SPACE, prompts_of(PROMPTS))

    def gap(model) -> float:
        with torch.no_grad():
            score, right = model.log_probs(every).sum(-1), truth.log_probs(every).sum(-1)
        return float((right.exp() * (right - score)).sum() / len(PROMPTS))

    assert gap(base) > 0.3
    config = TrainingConfig(steps=150, batch_size=100, learning_rate=0.02, optimizer="adam", schedule="cosine")
    Trainer(config)(Likelihood(), Tilted(both), data, modules=both)
    assert gap(both.eval()) < 0.05
    assert all(torch.equal(item, other) for item, other in zip(base.parameters(), before, strict=True))


def test_a_correction_speaks_of_the_same_space():
    with pytest.raises(ValueError, match="cannot be corrected by one over"):
        ProductOfExperts(lively(CONFIGS["gru, tied"], SPACE), lively(CONFIGS["gru, tied"], Space(3, 5, eos=0)))


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_counted_without_building(kind):
    built = build_base(CONFIGS[kind], SPACE, rng=SeededRng(0))
    assert parameter_count(CONFIGS[kind], 3) == sum(weight.numel() for weight in built.parameters())


@pytest.mark.parametrize(
    "config",
    [TransformerConfig(64, 3, 4, 256), GruConfig(40, 2), LstmConfig(width=30, embedding=30, tied=True)],
)
@pytest.mark.parametrize("times", [1, 2, 3.7])
def test_a_grown_base_has_the_parameters_asked_for(config, times):
    wanted = round(times * parameter_count(config, 500))
    actual = scaled_to(config, 500, wanted)
    assert type(actual) is type(config) and actual.layers == config.layers
    assert abs(parameter_count(actual, 500) - wanted) / wanted < 0.08
    if times == 1:
        assert actual == config


def test_a_deepened_base_is_the_same_until_it_learns():
    base = lively(CONFIGS["transformer, learned"], SPACE)
    deeper = with_extra_layers(base, 3, rng=SeededRng(0)).eval()
    x = enumerate_points(SPACE, prompts_of(PROMPTS))
    assert deeper.config.layers == 5
    assert torch.allclose(deeper.log_probs(x), base.log_probs(x), atol=1e-6)
    Likelihood()(Tilted(deeper), x, rng=SeededRng(0)).value.backward()
    assert float(deeper.network.blocks[4].o_proj.weight.grad.abs().max()) > 0
    with torch.no_grad():
        deeper.network.blocks[0].o_proj.weight.zero_()
    assert not torch.allclose(deeper.log_probs(x), base.log_probs(x), atol=1e-3)
    assert base.network.blocks[0].o_proj.weight.abs().max() > 0


def test_errors():
    with pytest.raises(ValueError, match="parameters already, more than 10"):
        scaled_to(TransformerConfig(64, 3, 4, 256), 500, 10)
    with pytest.raises(ValueError, match="takes no extra layers"):
        with_extra_layers(lively(CONFIGS["gru, tied"], SPACE), 1, rng=SeededRng(0))
    with pytest.raises(ValueError, match="at least 1 extra layer"):
        with_extra_layers(lively(CONFIGS["transformer, rotary"], SPACE), 0, rng=SeededRng(0))


def test_a_deepened_model_of_hugging_face_is_the_same_distribution_until_it_learns():
    base = tiny_base("llama")
    deeper = causal_lm_with_extra_layers(base, 2)
    more = sum(weight.numel() for weight in deeper.parameters()) - sum(weight.numel() for weight in base.parameters())
    assert more > 0 and deeper.model.config.num_hidden_layers == base.model.config.num_hidden_layers + 2
    x = enumerate_points(base.space, prompts_of([[1, 2]]))
    with torch.no_grad():
        assert torch.allclose(deeper.log_probs(x), base.log_probs(x), atol=1e-6)
    data, _ = draw(base, prompts_of([[1]]), 32, rng=SeededRng(0))
    Trainer(TrainingConfig(steps=3, learning_rate=0.03))(Likelihood(), Tilted(deeper), data, modules=deeper)
    with torch.no_grad():
        assert not torch.allclose(deeper.log_probs(x), base.log_probs(x), atol=1e-3)
    with pytest.raises(ValueError, match="takes no extra layers"):
        causal_lm_with_extra_layers(tiny_base("gpt2"), 1)
