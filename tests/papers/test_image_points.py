"""Images as points, few of them with a label: equal shares, nothing in two sets, the same by the same seed."""

import numpy as np
import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.data.images import ImageArray
from esscher.papers.games.points import as_points, semi_supervised_splits


def some(count):
    values = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 2, 3, 1), np.uint8)
    return ImageArray(values, np.arange(count) % 3, "some")


def test_numbers_and_places():
    values = np.array([[[[0], [51]], [[255], [102]]]], np.uint8)
    points = as_points(ImageArray(values, None, "one"), pixel_min=-1.0)
    assert torch.allclose(points.values, torch.tensor([[[[-1.0, -0.6], [1.0, -0.2]]]])) and points.labels is None


def test_few_labels():
    actual = semi_supervised_splits(some(60), some(9), 12, held_out=15, rng=SeededRng(0))
    assert actual.labelled.labels.bincount().tolist() == [4, 4, 4] and actual.unlabelled.labels is None
    sets = [
        set((255 * item.values[:, 0, 0, 0]).round().long().tolist())
        for item in (actual.labelled, actual.unlabelled, actual.validation)
    ]
    assert [len(item) for item in sets] == [12, 33, 15] and len(set.union(*sets)) == 60 and len(actual.test) == 9
    again, other = (semi_supervised_splits(some(60), some(9), 12, held_out=15, rng=SeededRng(seed)) for seed in (0, 1))
    assert again.labelled.values.equal(actual.labelled.values) and not other.labelled.values.equal(actual.labelled.values)
    assert len(semi_supervised_splits(some(60), some(9), 12, disjoint=False, rng=SeededRng(0)).unlabelled) == 60
    for wrong in (0, 13, 90):
        with pytest.raises(ValueError, match="choose a multiple of 3"):
            semi_supervised_splits(some(60), some(9), wrong, rng=SeededRng(0))
    with pytest.raises(ValueError, match="some states no classes"):
        semi_supervised_splits(ImageArray(some(9).values, None, "some"), some(9), 3, rng=SeededRng(0))
