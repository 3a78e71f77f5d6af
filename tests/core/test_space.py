"""Batches of points: their pieces, prompts and ends; what is told by column, told by position, and back."""

import pytest
import torch

from esscher.core.space import Space, concatenate, point_values, scatter_point_values, sequences


def test_pieces_prompts_and_ends():
    """The end symbol of a prompt ends no point, nor does one inside a point; a point of length 0 has no end."""
    x = sequences([[1, 0], [0], [], [0, 1], [2, 1]], prompts=[[], [3, 0], [0], [], [0]])
    assert x.prompt_keys() == [(), (3, 0), (0,), (), (0,)]
    pieces = x.split(2)
    assert [len(piece) for piece in pieces] == [2, 2, 1] and x.rows(slice(0, 0)).split(2) == []
    assert concatenate(pieces).points() == x.points() and concatenate(pieces).prompt_keys() == x.prompt_keys()
    assert Space(4, 3, eos=0).ends_with_eos(x).tolist() == [True, True, False, False, False]
    assert not Space(4, 3).ends_with_eos(x).any()
    assert Space(4, 3, eos=0).ends_with_eos(sequences([[], []])).tolist() == [False, False]


def test_by_position_leaves_prompts_and_what_follows_a_point():
    x = sequences([[1, 2, 3], [4]], prompts=[[7], [8, 9]])
    values = torch.arange(1.0, 9.0).view(2, 4).requires_grad_()
    actual = point_values(x, values, 4)
    assert actual.tolist() == [[2.0, 3.0, 4.0, 0.0], [7.0, 0.0, 0.0, 0.0]]
    actual.sum().backward()
    assert values.grad is not None and values.grad.tolist() == [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]]


def test_at_columns_puts_values_where_the_points_are():
    x = sequences([[1, 2, 3], [4], []], prompts=[[7], [8, 9], [5]])
    values = torch.arange(1.0, 10.0).view(3, 3).requires_grad_()
    actual = scatter_point_values(x, values)
    assert actual.tolist() == [[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 4.0, 0.0], [0.0] * 4]
    actual.sum().backward()
    assert values.grad is not None and values.grad.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("longer", [0, 2])
def test_by_position_undoes_at_columns(longer):
    """Of values in both directions the points' own come back, whatever stands beside them."""
    x = sequences([[1, 2], [3, 4, 5], [6]], prompts=[[], [1], [2, 2, 2]])
    length = 3 + longer
    values = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    inside = torch.arange(length) < x.lengths[:, None]
    assert torch.equal(point_values(x, scatter_point_values(x, values), length), torch.where(inside, values, 0.0))
    columns = torch.randn(x.tokens.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(scatter_point_values(x, point_values(x, columns, length)), torch.where(x.counted, columns, 0.0))
    assert not torch.equal(scatter_point_values(x, values.roll(1, 1)), scatter_point_values(x, values))


def test_at_columns_of_vectors_of_few_positions_and_of_nothing():
    x = sequences([[1, 2, 3], [4]], prompts=[[7], [8, 9]])
    vectors = torch.arange(1.0, 13.0).view(2, 2, 3)
    actual = scatter_point_values(x, vectors)
    assert actual.shape == (2, 4, 3) and torch.equal(actual[0, 1:3], vectors[0]) and torch.equal(actual[1, 2], vectors[1, 0])
    assert actual[0, 3].eq(0).all() and actual[1, 3].eq(0).all()
    wrong = torch.full((2, 4), torch.nan)
    assert scatter_point_values(x, wrong).isnan().sum() == 4  # what is not asked for does not leak
    assert scatter_point_values(x, torch.zeros(2, 0)).eq(0).all()
    assert scatter_point_values(sequences([[], []]), torch.zeros(2, 0, 5)).shape == (2, 0, 5)
    assert scatter_point_values(sequences([]), torch.zeros(0, 3)).shape == (0, 0)
