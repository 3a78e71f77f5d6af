"""A base as a density of continuous images: its own numbers at the levels, the gradient of finite differences between them."""

import pytest
import torch

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.papers.bad_gan.objective import ImageDensity

SIDE, LEVELS = 4, 5


def bases(channels):
    image = (SIDE, SIDE, channels)
    configs = [
        PixelCnnConfig(width=4, layers=1, first_kernel_size=3, image=image),
        GatedPixelCnnConfig(width=4, layers=1, first_kernel_size=3, image=image),
        PixelCnnPlusPlusConfig(width=4, layers=1, dropout=0.5, scales=2, mixtures=2, image=image),
    ]
    return [build_base(config, Space(LEVELS, SIDE * SIDE * channels), rng=SeededRng(0)) for config in configs]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("number", range(3))
def test_at_levels_it_is_the_base_and_between_them_it_has_a_gradient(number, channels):
    base = bases(channels)[number].double()
    density = ImageDensity(base, pixel_min=-1.0)
    tokens = SeededRng(1).categorical(torch.zeros(3, LEVELS), SIDE * SIDE * channels)
    start = torch.zeros(3, dtype=torch.long)
    drawn = base.log_probs(Sequences(tokens, start, torch.full_like(start, tokens.shape[1]))).sum(-1)
    images = (tokens.double() / (LEVELS - 1) * 2 - 1).view(3, SIDE, SIDE, channels).permute(0, 3, 1, 2)
    assert torch.allclose(density(images), drawn, atol=1e-9)
    assert not torch.allclose(density(-images), drawn, atol=1e-3)
    between = (0.8 * images).requires_grad_()  # no number near a level, but those of 0
    (gradient,) = torch.autograd.grad(density(between).sum(), between)
    away = (0.8 * images).abs() > 0.1
    for place in away.flatten().nonzero()[::9, 0].tolist():
        step = torch.zeros(images.numel(), dtype=torch.float64)
        step[place] = 1e-5
        step = step.view_as(images)
        with torch.no_grad():
            slope = (density(between + step) - density(between - step)).sum() / 2e-5
        assert float(gradient.flatten()[place]) == pytest.approx(float(slope), abs=1e-5)


def test_larger_images_are_shrunk_and_a_share_lies_below_the_quantile():
    density = ImageDensity(bases(1)[0])
    images = SeededRng(2).uniform(40, 1, SIDE, SIDE)
    assert torch.allclose(density(images.repeat_interleave(2, 2).repeat_interleave(2, 3)), density(images), atol=1e-4)
    threshold = density.quantile(images, 0.25)
    assert int((density(images) < threshold).sum()) == 10
    with pytest.raises(ValueError, match="no multiple of it"):
        density(images[:, :, :3])


def test_other_bases_are_refused():
    conditional = build_base(PixelCnnConfig(width=4, layers=1, image=(2, 2, 1), classes=3), Space(LEVELS, 4), rng=SeededRng(0))
    words = build_base(TransformerConfig(width=4, layers=1, heads=1), Space(LEVELS, 4), rng=SeededRng(0))
    for base in (conditional, words):
        with pytest.raises(ValueError, match="needs a base of images without classes"):
            ImageDensity(base)
