"""Regions of a classifier in the plane and in a space of two features, and what of a class boundary is taken for generated."""

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.papers.bad_gan.regions import boundary_share, feature_view, planar_view, region_panels
from esscher.papers.games.networks import PlanarNets
from esscher.papers.games.points import SemiSupervisedSplits, two_circles

PROCESS = two_circles()
DATA = PROCESS.draw(60, rng=SeededRng(0))
SETS = SemiSupervisedSplits(PROCESS.draw_per_class(2, rng=SeededRng(1)), DATA, DATA, DATA)
MADE = SeededRng(2).normal(30, 2)


@torch.no_grad()
def test_a_view_has_the_classes_and_the_odds_of_its_cells():
    game = PlanarNets(width=8).build(classes=2, rng=SeededRng(3))
    view = planar_view(game, SETS, MADE)
    left_top = view["box"][[0, 3]].float()  # the last row of the first column
    logits = game.discriminator(left_top[None])[0]
    assert int(view["classes"][99]) == int(logits.argmax())
    assert float(view["log odds"][99]) == pytest.approx(float(logits.exp().sum().log()), abs=1e-4)
    assert feature_view(view) == {}


@torch.no_grad()
def test_two_features_have_a_view_of_their_own():
    game = PlanarNets(width=8, features=2).build(classes=2, rng=SeededRng(3))
    second = feature_view(view := planar_view(game, SETS, MADE))
    assert second["made"].equal(game.discriminator.features(MADE)) and second["labels"].equal(SETS.labelled.labels)
    points = torch.cat([second[name] for name in ("labelled", "data", "made")]).double()
    outside = torch.cat([second["box"][:2] - points.amin(0), points.amax(0) - second["box"][2:]])
    spread = (points.amax(0) - points.amin(0)).repeat(2)
    assert torch.allclose(outside, -spread / 4)  # the box is theirs, with a quarter more on each side
    right_bottom = second["box"][[2, 1]].float()  # the first row of the last column
    logits = game.discriminator.head(right_bottom[None])[0]
    assert int(second["classes"][9_900]) == int(logits.argmax())
    assert float(second["log odds"][9_900]) == pytest.approx(float(logits.logsumexp(0)), abs=1e-4)
    figure = region_panels({"plane": view, "features": second})
    assert len(figure.axes) == 6 and figure.axes[3].get_ylabel() == "features"
    without = PlanarNets(width=8).build(classes=2, rng=SeededRng(3)).discriminator
    assert without.features(MADE).shape == (30, 8)


def test_the_share_of_a_boundary_by_hand():
    """Four columns of four cells: the class changes after the second column, and the lower half is taken for generated."""
    classes = torch.tensor([0, 0, 1, 1]).repeat_interleave(4)
    log_odds = torch.tensor([-1.0, -1.0, 1.0, 1.0]).repeat(4)
    box = torch.tensor([0.0, 0.0, 3.0, 3.0])
    view = {"classes": classes, "log odds": log_odds, "box": box, "data": torch.tensor([[0.0, 0.0], [3.0, 3.0]])}
    share = boundary_share(view)
    assert share.value == pytest.approx(200 / 3) and share.method == "3 cells"  # rows 0 to 2; the last has none above
    within = boundary_share({**view, "data": torch.tensor([[0.0, 0.5], [3.0, 2.5]])})
    assert within.value == 50 and within.method == "2 cells"
    assert boundary_share({**view, "classes": torch.zeros(16, dtype=torch.long)}) is None
