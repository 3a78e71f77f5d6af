"""Shapes of the package are checked in the first calls of every test, and only there."""

import pytest
import torch
from checking import CHECKED, begin_test
from jaxtyping import TypeCheckError

from esscher.core.draws import Draws
from esscher.core.space import Sequences, point_values, sequences


def test_wrong_shapes_are_caught_anew_in_every_test():
    x = sequences([[1, 2], [0]])
    for _ in range(2):
        begin_test()
        with pytest.raises(TypeCheckError):
            point_values(x, torch.zeros(3, 2), 2)  # three rows of values for two of tokens
        for _ in range(CHECKED):
            point_values(x, torch.zeros(2, 2), 2)
        point_values(sequences([[1, 2]]), torch.zeros(3, 2), 2)  # no longer looked at


def test_dataclasses_are_checked():
    with pytest.raises(TypeCheckError):
        Sequences(torch.zeros(2, 3, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    with pytest.raises(TypeCheckError):
        Draws(sequences([[1]]), torch.zeros(1, 1), torch.zeros(1, 2), estimates_z=True, independent=True, cost=1)
