"""Mixtures of discretised logistics: exactly normalised, the naive formula where that can be computed, channels of a pixel as
the published joint mixture."""

import math
from itertools import product

import pytest
import torch

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.heads import mixture
from esscher.heads.mixture import DiscretizedLogisticHead, log_bin_probs
from esscher.networks.masked_convolution import FullImage
from esscher.networks.pixelcnn_config import PixelCnnPlusPlusConfig


def parts(count: int, *, spread: float = 1.0):
    with SeededRng(5).fork_torch_rng():
        return torch.randn(2, count, dtype=torch.float64) * spread


@pytest.mark.parametrize("levels", [1, 2, 3, 16, 256])
@pytest.mark.parametrize("log_scale", [-20.0, -7.0, -3.0, 0.0, 5.0])
def test_bins_sum_to_1(levels, log_scale):
    means = torch.tensor([-300.0, -1.0, -0.99, 0.0, 0.3, 1.0, 2.0, 300.0], dtype=torch.float64)
    actual = log_bin_probs(torch.arange(levels)[:, None], means, torch.full_like(means, log_scale), levels)
    assert bool(actual.isfinite().all())
    assert torch.allclose(actual.exp().sum(0), torch.ones_like(means), atol=1e-12)


def test_bins_are_differences_of_the_distribution_function():
    mean, log_scale = parts(20, spread=0.5)
    levels, narrow = 8, torch.exp(-log_scale)
    for level in range(levels):
        place = 2 * level / 7 - 1
        above = torch.ones_like(mean) if level == 7 else torch.sigmoid(narrow * (place + 1 / 7 - mean))
        below = torch.zeros_like(mean) if level == 0 else torch.sigmoid(narrow * (place - 1 / 7 - mean))
        actual = log_bin_probs(torch.tensor(level), mean, log_scale, levels)
        assert torch.allclose(actual, (above - below).log(), atol=1e-10)


def test_gradients_are_finite_far_from_the_mean():
    hidden = torch.tensor([[0.0, 50.0, -7.0], [0.0, -50.0, 9.0]], requires_grad=True)
    head = DiscretizedLogisticHead(256)
    log_probs, level = head.log_probs_and_logsumexp(hidden, torch.tensor([3, 255]))
    (log_probs.sum() + level.sum() + head.logits(hidden)[:, 7].sum()).backward()
    assert bool(hidden.grad.isfinite().all())


def test_scores_and_levels_are_those_of_the_logits():
    with SeededRng(1).fork_torch_rng():
        hidden, tokens = torch.randn(4, 5, 9, dtype=torch.float64), torch.randint(-1, 6, (4, 5))
    head = DiscretizedLogisticHead(6)
    logits, (log_probs, level) = head.logits(hidden), head.log_probs_and_logsumexp(hidden, tokens)
    asked = tokens >= 0
    drawn = logits.log_softmax(-1).gather(-1, tokens.clamp(min=0)[..., None])[..., 0]
    assert torch.allclose(log_probs[asked], drawn[asked], atol=1e-12) and torch.allclose(
        level[asked], logits.logsumexp(-1)[asked]
    )
    assert not bool(log_probs[~asked].any()) and not bool(level[~asked].any())


def test_channels_are_one_mixture():
    """The sum over components of the products of all three channels, as published; the level is the same for all."""
    base = build_base(
        PixelCnnPlusPlusConfig(6, 1, 0.0, (1, 1, 3), scales=1, mixtures=4), Space(3, 3), rng=SeededRng(3)
    ).double()
    network = base.network
    x = sequences([list(values) for values in product(range(3), repeat=3)])
    canvas, _ = network._canvas_and_label(x, 1)
    output = torch.nn.functional.linear(
        torch.nn.functional.elu(network._features(FullImage(canvas, training=False), None)),
        network.final_conv.kernel()[:, :, 0, 0],
        network.final_conv.bias,
    ).view(27, 10, 4)
    share, means, scales, coefficients = output[:, 0], output[:, 1:4], output[:, 4:7], output[:, 7:].tanh()
    value = (x.tokens - 1.0).double()
    green = means[:, 1] + coefficients[:, 0] * value[:, :1]
    blue = means[:, 2] + coefficients[:, 1] * value[:, :1] + coefficients[:, 2] * value[:, 1:2]
    joint = share.log_softmax(-1)
    for channel, mean in enumerate((means[:, 0], green, blue)):
        joint = joint + log_bin_probs(x.tokens[:, channel, None], mean, scales[:, channel], 3)
    scores, levels = base.log_probs_and_logsumexp(x)
    assert torch.allclose(scores.sum(-1), joint.logsumexp(-1), atol=1e-12)
    assert torch.allclose(levels, share.logsumexp(-1, keepdim=True).expand(-1, 3), atol=1e-12)
    assert math.isclose(float(scores.detach().sum(-1).exp().sum()), 1.0, abs_tol=1e-12)


def test_open_edges_are_needed(monkeypatch):
    """Bins that end at the edges do not sum to 1: the check sees it."""

    def closed(token, mean, log_scale, levels):
        half, narrow = 1 / (levels - 1), torch.exp(-log_scale)
        centred = token * 2 * half - 1 - mean
        return (torch.sigmoid(narrow * (centred + half)) - torch.sigmoid(narrow * (centred - half))).log()

    monkeypatch.setattr(mixture, "log_bin_probs", closed)
    hidden = torch.tensor([[0.0, 0.9, 0.0]], dtype=torch.float64)
    assert float(DiscretizedLogisticHead(4).logits(hidden).exp().sum()) < 0.99
