"""Batches of points: what is told by column, told by position."""

import torch

from esscher.space import by_position, sequences


def test_by_position_leaves_prompts_and_what_follows_a_point():
    x = sequences([[1, 2, 3], [4]], prompts=[[7], [8, 9]])
    values = torch.arange(1.0, 9.0).view(2, 4).requires_grad_()
    found = by_position(x, values, 4)
    assert found.tolist() == [[2.0, 3.0, 4.0, 0.0], [7.0, 0.0, 0.0, 0.0]]
    found.sum().backward()
    assert values.grad is not None and values.grad.tolist() == [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
