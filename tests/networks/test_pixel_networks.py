"""Networks of images: what each pixel sees, by gradients; exact sums over all small images; steps and whole passes draw the
same; wrong masks and wrong steps are caught."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from marks import slow_except

from esscher.bases.network import NetworkBase, build_base, with_prompt_tokens
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.energies.config import EnergyConfig
from esscher.energies.network import build_energy
from esscher.estimators.perplexity import as_bits, cross_entropy
from esscher.exact.enumeration import enumerate_points
from esscher.networks import masked_convolution
from esscher.networks.masked_convolution import ConvCache, FullImage, IncrementalRow, convolution_mask
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.registry import NETWORKS
from esscher.objectives.config import EForcingConfig
from esscher.objectives.exposure_bias import EForcing
from esscher.samplers.ancestral import draw
from esscher.testing import check_base, check_energy

KINDS = {
    "pixelcnn": PixelCnnConfig(8, 2, first_kernel_size=3),
    "gated-pixelcnn": GatedPixelCnnConfig(6, 2, first_kernel_size=3),
    "pixelcnn++": PixelCnnPlusPlusConfig(6, 1, 0.0, (28, 28, 1), scales=2, mixtures=3),
}
ENLARGED = {"upsampling": "2x3"}
MASKED = ("pixelcnn", "gated-pixelcnn")


def base_of(kind, image, *, levels=3, length=None, classes=0, seed=1, **more) -> NetworkBase:
    config = replace(KINDS[kind], image=image, classes=classes, **more)
    space = Space(levels, math.prod(image) if length is None else length)
    base = build_base(config, space, rng=SeededRng(seed)).double().eval()
    with torch.no_grad():
        for weight in base.parameters():
            weight.mul_(2 if weight.dim() > 1 else 1.5)
    return base


def sees(base) -> torch.Tensor:
    """Which values (columns) change the hidden vector of which (rows), by the gradient at random images."""
    network, size = base.network, base.space.max_length
    with SeededRng(3).fork_torch_rng():
        canvas = torch.randn(8, *base.config.image[:2], base.config.image[2] + 1, dtype=torch.float64, requires_grad=True)
        given = torch.randn(8, size, 64, dtype=torch.float64)
    actual = network.channel_hidden(network._features(FullImage(canvas, training=False), None), canvas[..., 1:]).flatten(1, 3)
    rows = [
        torch.autograd.grad((actual[:, t] * given[:, t, : actual.shape[2]]).sum(), canvas, retain_graph=True)[0][..., 1:]
        for t in range(size)
    ]
    return torch.stack(rows).abs().amax(1).flatten(1) > 0


def check_causal(base):
    """No value sees itself or one after it."""
    assert not bool(torch.triu(sees(base)).any()), "a value must see only those before it"


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_values_see_what_is_before_them_and_all_of_it(kind, channels):
    """Within the reach of two layers; a PixelCNN has its blind spot (below)."""
    base = base_of(kind, (4, 4, channels) if channels < 3 else (2, 4, 3), layers=3 if kind == "gated-pixelcnn" else 2)
    check_causal(base)
    if kind != "pixelcnn":
        actual = sees(base)
        missing = torch.tril(torch.ones_like(actual), -1) & ~actual
        assert not bool(missing.any()), f"{int(missing.sum())} values before others are not seen"


def test_the_blind_spot_of_a_pixelcnn_and_of_no_other():
    """With any number of layers, what lies further to the right than it lies above is not seen."""
    for kind, blind in (("pixelcnn", True), ("gated-pixelcnn", False)):
        base = base_of(kind, (5, 5, 1), layers=6)
        seen = sees(base)[2 * 5 + 1].view(5, 5)
        expected = torch.zeros(5, 5, dtype=torch.bool)
        expected[:2], expected[2, 0] = True, True
        if blind:
            expected[1, 3:], expected[0, 4:] = False, False
        assert torch.equal(seen, expected)


def test_upsampling_by_2x3_is_the_published_transposed_convolution():
    """Stride 2, one column cut off on the left, as many as the doubled size kept."""
    base = base_of("pixelcnn++", (8, 8, 1), **ENLARGED)
    window, x = base.network.rows[0].upsample, torch.randn(2, 3, 5, 6, dtype=torch.float64)
    torch.nn.init.zeros_(window.bias)
    kernel = window.kernel().detach().view(2, 2, 6, 6, 2)  # row and column of the finer ones, output, input, the right of two
    taps = torch.stack([kernel[:, 1, :, :, 1], kernel[:, 0, :, :, 0], kernel[:, 1, :, :, 0]], -1)
    whole = torch.nn.functional.conv_transpose2d(x.permute(0, 3, 1, 2), taps.permute(2, 1, 0, 3), stride=2)
    expected = torch.nn.functional.pad(whole, (0, 1))[..., 1:11].permute(0, 2, 3, 1)
    assert torch.allclose(FullImage(x, training=False).finer(window, x), expected, atol=1e-12)
    assert not bool(kernel[:, 0, :, :, 1].any()) and base.network.pixels[0].upsample.single


def published_field(rows, columns, layers, width):
    """Which pixels each pixel sees in the published network of two scales, from the sizes of its filters."""
    seen = torch.eye(rows * columns, dtype=torch.bool).view(rows, columns, -1)

    def conv(x, height, left, right, stride=1):
        padded = torch.nn.functional.pad(x.float(), (0, 0, left, right, height - 1, 0)).bool()
        shifts = [(i, j) for i in range(height) for j in range(left + 1 + right)]
        return torch.stack([padded[i : i + len(x) : stride, j : j + x.shape[1] : stride] for i, j in shifts]).any(0)

    def shifted(x, down, right):
        return torch.nn.functional.pad(x.float(), (0, 0, right, 0, down, 0)).bool()[: len(x), : x.shape[1]]

    def deconv(x, taps):
        fine = torch.zeros(2 * len(x), 2 * x.shape[1] + 2, rows * columns, dtype=torch.bool)
        for i in range(2):
            for j in range(taps):
                fine[i::2, j : j + 2 * x.shape[1] : 2] |= x
        return fine[:, (taps - 1) // 2 :][:, : 2 * x.shape[1]]

    def resnet(x, right, *more):
        return x | conv(torch.stack([conv(x, 2, 1, right), *more]).any(0), 2, 1, right)

    above = [shifted(conv(seen, 2, 1, 1), 1, 0)]
    left = [shifted(conv(seen, 1, 1, 1), 1, 0) | shifted(conv(seen, 2, 0, 0), 0, 1)]
    for scale in range(2):
        if scale:
            above.append(conv(above[-1], 2, 1, 1, 2))
            left.append(conv(left[-1], 2, 1, 0, 2))
        for _ in range(layers):
            above.append(resnet(above[-1], 1))
            left.append(resnet(left[-1], 0, above[-1]))
    u, ul = above.pop(), left.pop()
    for scale in range(2):
        if scale:
            u, ul = deconv(u, width), deconv(ul, 2)
        for _ in range(layers + scale):
            u = resnet(u, 1, above.pop())
            ul = resnet(ul, 0, u, left.pop())
    assert not above and not left
    return ul.flatten(0, 1)


@pytest.mark.parametrize(("more", "width"), [({}, 2), (ENLARGED, 3)])
def test_the_receptive_field_is_the_published_one(more, width):
    """Of every pixel of images that are wider than it, by the gradient; the other kernel has another field."""
    actual = sees(base_of("pixelcnn++", (4, 28, 1), **more))
    assert torch.equal(actual, published_field(4, 28, 1, width))
    assert not torch.equal(actual, published_field(4, 28, 1, 5 - width))
    assert not bool(torch.triu(actual).any())


@pytest.mark.parametrize(("image", "scales"), [((4, 4, 1), 3), ((2, 4, 2), 2)])
def test_laws_of_a_base_with_the_published_upsampling(image, scales):
    base = base_of("pixelcnn++", image, length=3, scales=scales, **ENLARGED)
    check_base(base, [[], [2, 0, 1, 1, 2]], tolerance=1e-10)
    whole = base_of("pixelcnn++", image, levels=4, scales=scales, **ENLARGED)
    x, log_prob = draw(whole, empty_prompts(2), 3, rng=SeededRng(7))
    assert torch.allclose(log_prob.view(-1), whole.log_probs(x).sum(-1), atol=1e-10)


@pytest.mark.parametrize(("channels", "classes"), [(1, 0), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_laws_of_a_base(kind, channels, classes):
    prompts = [[], [2, 0, 1, 1, 2]]
    if classes:
        prompts = [[3 + number % 2, *prompt] for number, prompt in enumerate(prompts)]
    deep = {"scales": 3} if kind == "pixelcnn++" and channels == 1 else {}
    base = base_of(kind, (4, 4, 1) if channels == 1 else (2, 2, 3), length=3, classes=classes, **deep)
    check_base(base, prompts, tolerance=1e-10)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_all_small_images_have_probability_1(kind, rows, columns):
    base = base_of(kind, (rows, columns, 1), levels=2, **({"scales": 1} if kind == "pixelcnn++" and rows == 3 else {}))
    x = enumerate_points(base.space, empty_prompts(1))
    assert len(x) == 2 ** (rows * columns)
    assert float(base.log_probs(x).sum(-1).exp().sum().detach()) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("levels", [2, 5, 256])
@pytest.mark.parametrize("kind", MASKED)
def test_bits_of_a_uniform_model(kind, levels):
    base = base_of(kind, (4, 4, 1), levels=levels)
    torch.nn.init.zeros_(base.network.head.weight)
    torch.nn.init.zeros_(base.network.head.bias)
    tokens = torch.arange(160).view(10, 16) * 7 % levels
    x = Sequences(tokens, torch.zeros(10, dtype=torch.long), torch.full((10,), 16))
    actual = as_bits(cross_entropy(Tilted(base), x))["token"]
    assert actual.value == pytest.approx(math.log2(levels), abs=1e-14) and actual.low <= actual.value <= actual.high


class Uncached:
    """The same base by whole passes over what was drawn so far, one for each value."""

    def __init__(self, base):
        self.base, self.space = base, base.space

    def log_probs(self, x):
        return self.base.log_probs(x)

    def begin(self, prompts):
        return self._told(prompts.tokens), prompts.tokens

    def advance(self, state, token):
        state = torch.cat([state, token[:, None]], 1)
        return self._told(state), state

    def select(self, state, index):
        return state[index]

    def _told(self, tokens):
        (rows, length), known = tokens.shape, min(1, self.base.config.classes)
        further = torch.nn.functional.pad(tokens, (0, 1))
        start = torch.full((rows,), max(known, 0))
        return self.base.logits(Sequences(further, start, torch.full((rows,), length + 1)))[:, -1].log_softmax(-1)


@pytest.mark.parametrize(("image", "classes"), [((4, 4, 1), 2), ((2, 2, 3), 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_draw_what_whole_passes_draw(kind, image, classes):
    """Draw by draw, from the same dice; draws share states as long as they agree."""
    base = base_of(kind, image, levels=4, classes=classes)
    prompts = prompts_of([[4], [5]]) if classes else empty_prompts(2)
    with torch.no_grad():
        actual, log_prob = draw(base, prompts, 6, rng=SeededRng(7))
        expected, other = draw(Uncached(base), prompts, 6, rng=SeededRng(7))
    assert torch.equal(actual.tokens, expected.tokens) and torch.allclose(log_prob, other, atol=1e-10)
    assert torch.allclose(log_prob.view(-1), base.log_probs(actual).sum(-1), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_given_pixels_stay_and_the_rest_is_drawn_after_them(kind):
    base = base_of(kind, (4, 4, 1), levels=4)
    given = torch.arange(16).view(2, 8) % 4
    left = with_prompt_tokens(base, 8)
    x, log_prob = draw(left, prompts_of(given.tolist()), 5, rng=SeededRng(0))
    assert torch.equal(x.tokens[:, :8], given.repeat_interleave(5, 0)) and x.tokens.shape == (10, 16)
    assert torch.allclose(log_prob.view(-1), base.log_probs(x).sum(-1), atol=1e-10)
    assert len({tuple(row) for row in x.tokens[:, 8:].tolist()}) > 5
    for wrong in (16, -1):
        with pytest.raises(ValueError, match=f"The first {wrong} tokens of .* cannot be a prompt"):
            with_prompt_tokens(base, wrong)


def also_itself(*args):
    """Masks let a channel see itself from the start."""
    return convolution_mask(*args[:5], "upto" if args[5] == "before" else args[5], args[6])


def one_to_the_right(inputs, outputs, rows, left, right, sees, groups):
    mask = convolution_mask(inputs, outputs, rows, left, right, sees, groups)
    mask[:, :, -1, left + 1 : left + 2] = 1
    return mask


def channels_backwards(inputs, outputs, rows, left, right, sees, groups):
    mask = convolution_mask(inputs, outputs, rows, left, right, sees, groups)
    mask[:, :, -1, left] = mask[:, :, -1, left].flip(0, 1)
    return mask


def own_row(*args):
    return convolution_mask(*args[:5], "all" if args[5] == "above" else args[5], args[6])


WRONG_MASKS = {
    "pixelcnn, also itself": ("pixelcnn", 1, also_itself),
    "pixelcnn, one to the right": ("pixelcnn", 1, one_to_the_right),
    "pixelcnn, channels backwards": ("pixelcnn", 3, channels_backwards),
    "gated, also itself": ("gated-pixelcnn", 2, also_itself),
    "gated, own row from above": ("gated-pixelcnn", 1, own_row),
    "gated, channels backwards": ("gated-pixelcnn", 3, channels_backwards),
    "++, own row from above": ("pixelcnn++", 1, own_row),
    "++, also itself": ("pixelcnn++", 1, also_itself),
}


@pytest.mark.parametrize("wrong", WRONG_MASKS)
def test_wrong_masks_are_caught(wrong, monkeypatch):
    kind, channels, mask = WRONG_MASKS[wrong]
    monkeypatch.setattr(masked_convolution, "convolution_mask", mask)
    base = base_of(kind, (2, 4, channels), levels=2, length=3)
    with pytest.raises(AssertionError):
        check_base(base, [[], [1, 0, 1, 1, 0]], tolerance=1e-10)
    with pytest.raises(AssertionError, match="only those before"):
        check_causal(base_of(kind, (2, 4, channels)))


def forgets_rows(self, window, x):
    """Rows do not move up."""
    self.begins = False
    return WRITE(self, window, x)


def forgets_places(self, window, place, found):
    """Of a coarser row only the last place is kept."""
    return tuple(item.expand(-1, -1, self.width // 2, -1) for item in found)


def shares(self, index):
    """What was read is not copied."""
    chosen = SELECT(self, index)
    if len(index) == len(self.canvas):
        chosen.read = self.read
    return chosen


WRITE, SELECT = IncrementalRow._write, ConvCache.select
WRONG_STEPS = {
    "rows do not move": ("pixelcnn", IncrementalRow, "_write", forgets_rows, "stepping must equal scoring"),
    "rows do not move, gated": ("gated-pixelcnn", IncrementalRow, "_write", forgets_rows, "stepping must equal scoring"),
    "one place": ("pixelcnn++", IncrementalRow, "_write_coarse", forgets_places, "stepping must equal scoring"),
    "shared memory": ("pixelcnn", ConvCache, "select", shares, "select must copy"),
}


@pytest.mark.parametrize("wrong", slow_except(["rows do not move", "shared memory"], WRONG_STEPS))
def test_wrong_steps_are_caught(wrong, monkeypatch):
    kind, place, name, other, law = WRONG_STEPS[wrong]
    base, check = base_of(kind, (4, 4, 1), length=3), partial(check_base, prompts=[[], [1, 2, 0]], tolerance=1e-10)
    check(base)
    monkeypatch.setattr(place, name, other)
    with pytest.raises(AssertionError, match=law):
        check(base)


def test_settled_outputs_have_mean_0_and_their_scale():
    base = base_of("pixelcnn++", (4, 4, 1))
    with SeededRng(2).fork_torch_rng():
        x = Sequences(torch.randint(3, (64, 16)), torch.zeros(64, dtype=torch.long), torch.full((64,), 16))
    network = base.network
    network.data_dependent_init(x)
    canvas, _ = network._canvas_and_label(x, 4)
    actual = FullImage(canvas, training=False).image(network.first).flatten(0, 2)
    assert torch.allclose(actual.mean(0), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(actual.std(0), torch.ones(6, dtype=torch.float64), atol=1e-12)
    check_base(with_prompt_tokens(base, 14), [[1] * 14, [2, 0] * 7], tolerance=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_energies_see_the_whole_image(kind):
    base = base_of(kind, (2, 2, 1), levels=2)
    energy = build_energy(EnergyConfig("bidirectional"), base, rng=SeededRng(1)).double().eval()
    x = enumerate_points(base.space, empty_prompts(1))
    assert not bool(energy(x).any())
    torch.nn.init.normal_(energy.head.weight)
    check_energy(energy, x)
    actual = energy(x).detach()
    for pixel in range(4):  # every pixel matters beside all others
        flipped = x.tokens.clone()
        flipped[:, pixel] = 1 - flipped[:, pixel]
        assert float((energy(replace(x, tokens=flipped)).detach() - actual).abs().max()) > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_the_level_learns_by_eforcing(kind):
    base = base_of(kind, (2, 2, 1), levels=2).train()
    x = enumerate_points(base.space, empty_prompts(1))
    loss = EForcing(EForcingConfig(weight=1.0))(Tilted(base), x, rng=SeededRng(0)).value
    slopes = torch.autograd.grad(loss, list(base.parameters()), allow_unused=True)
    assert all(slope is not None and bool(slope.isfinite().all()) for slope in slopes)


def test_prompts_of_classes_are_needed():
    base = base_of("gated-pixelcnn", (2, 2, 1), levels=2, classes=3)
    for prompts in ([[]], [[1]], [[5]], [[2], [0]]):
        with pytest.raises(ValueError, match="begins with the class of the image, 2 to 4"):
            base.begin(prompts_of(prompts))
    first = base.begin(prompts_of([[2], [3], [4]]))[0]
    assert len({tuple(row) for row in first.tolist()}) == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "pixelcnn", "image": [8, 8, 0]}, "rows, columns and channels"),
        ({"kind": "pixelcnn", "width": 7}, "the width is even, not 7"),
        ({"kind": "gated-pixelcnn", "kernel_size": 4}, "kernel size is odd, not 4"),
        ({"kind": "pixelcnn++", "image": [28, 28, 1], "scales": 4}, "cannot be halved 3 times"),
        ({"kind": "pixelcnn++", "output": "softmax"}, "Unknown key 'output'"),
        ({"kind": "pixelcnn", "classes": -1}, "0 classes or more"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict(values)
