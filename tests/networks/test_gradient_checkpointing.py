"""Gradient checkpointing: the same losses and gradients, dropout included, from less memory."""

import pytest
import torch
from causal_models import tiny_base
from small_networks import CONFIGS
from torch.autograd.graph import saved_tensors_hooks

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.networks.gradient_checkpointing import enable_gradient_checkpointing
from esscher.networks.transformer_config import TransformerConfig, TransformerXLConfig

SPACE = Space(3, 30)
NETWORKS = {
    "transformer": TransformerConfig(16, 4, 2, 32, dropout=0.3),
    "transformer-xl": TransformerXLConfig(16, 4, 2, 32, dropout=0.3),
}


def new_base(kind):
    if kind == "llama":
        return tiny_base("llama", eos=None, max_length=15).train()
    return build_base(NETWORKS[kind], SPACE, rng=SeededRng(1)).train()


def learnt(base):
    """The loss, the gradient of each weight, and the bytes that were kept for it beside the weights."""
    length = base.space.max_length
    kept, weights = {}, {weight.untyped_storage().data_ptr() for weight in base.parameters()}

    def keep(tensor):
        place = tensor.untyped_storage()
        if place.data_ptr() not in weights:
            kept[place.data_ptr(), place.nbytes()] = tensor
        return tensor

    x = sequences([[(7 * row + place * place) % 3 for place in range(length)] for row in range(8)])
    with SeededRng(2).fork_torch_rng(), saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = -base.log_probs(x).sum()
    with SeededRng(3).fork_torch_rng():  # which recomputing must not use
        gradients = torch.autograd.grad(loss, list(base.parameters()), allow_unused=True)
    return loss, [gradient for gradient in gradients if gradient is not None], sum(size for _, size in kept)


@pytest.mark.parametrize("kind", ["transformer", "transformer-xl", "llama"])
def test_the_same_gradient_from_less_memory(kind):
    base = new_base(kind)
    loss, gradients, kept = learnt(base)
    enable_gradient_checkpointing(base)
    again, same, less = learnt(base)
    assert torch.equal(loss, again)
    assert all(torch.allclose(item, other, rtol=1e-5, atol=1e-6) for item, other in zip(gradients, same, strict=True))
    assert less < 0.5 * kept


def test_dropout_that_is_thrown_anew_is_caught(monkeypatch):
    from esscher.networks import gradient_checkpointing as module

    base = new_base("transformer")
    _, gradients, _ = learnt(base)
    forgetful = module.checkpoint
    monkeypatch.setattr(module, "checkpoint", lambda *a, **k: forgetful(*a, preserve_rng_state=False, **k))
    enable_gradient_checkpointing(base)
    _, other, _ = learnt(base)
    assert not all(torch.allclose(first, second, rtol=1e-5, atol=1e-6) for first, second in zip(gradients, other, strict=True))


def test_a_network_without_known_layers_is_refused():
    base = build_base(CONFIGS["lstm, one-hot"], Space(3, 4), rng=SeededRng(1))
    with pytest.raises(ValueError, match="NetworkBase has no layers for gradient checkpointing"):
        enable_gradient_checkpointing(base)
