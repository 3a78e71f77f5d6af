"""The order of the data: every sequence once an epoch, the same for the same seed, shared without overlap."""

from itertools import pairwise
from unittest.mock import create_autospec

import pytest
import torch
from accelerate import Accelerator
from random_targets import random_automaton

from esscher.core.space import Space, sequences
from esscher.core.target import Tilted
from esscher.training.batches import LengthBuckets, ShuffledBatches, ShuffledOrder, split_into_micro_batches
from esscher.training.config import TrainingConfig


def test_every_sequence_once_an_epoch_and_other_orders_in_other_epochs():
    order = ShuffledOrder(10, 4, seed=3)
    stream = torch.cat([order.batch(step) for step in range(5)])
    assert sorted(stream[:10].tolist()) == sorted(stream[10:].tolist()) == list(range(10))
    assert stream[:10].tolist() != stream[10:].tolist()


def test_a_batch_does_not_depend_on_what_was_asked_before():
    assert ShuffledOrder(10, 4, seed=3).batch(7).tolist() == ShuffledOrder(10, 4, seed=3).batch(7).tolist()
    assert ShuffledOrder(10, 4, seed=3).batch(7).tolist() != ShuffledOrder(10, 4, seed=4).batch(7).tolist()
    assert len(ShuffledOrder(3, 8, seed=0).batch(2)) == 8


def test_updates_of_epochs():
    assert (
        ShuffledOrder(105, 10, seed=0).steps(2) == 21
        and ShuffledOrder(101, 10, seed=0).steps(1) == 11
        and ShuffledOrder(3, 8, seed=0).steps(1) == 1
    )


def test_batches_of_tokens_hold_sequences_alike_in_length():
    lengths = torch.tensor([3, 9, 1, 4, 2, 12, 3, 3, 1, 8])
    order = LengthBuckets(lengths, 8, seed=3)
    steps = order.steps(1)
    assert order.steps(3) == 3 * steps
    epochs = [[order.batch(epoch * steps + step) for step in range(steps)] for epoch in (0, 1)]
    for batches in epochs:
        assert sorted(torch.cat(batches).tolist()) == list(range(10))
        assert all(len(batch) * int(lengths[batch].max()) <= 8 or len(batch) == 1 for batch in batches)
        ordered = sorted((int(lengths[batch].min()), int(lengths[batch].max())) for batch in batches)
        assert all(item[1] <= other[0] for item, other in pairwise(ordered)), "lengths must be parted"
    assert [batch.tolist() for batch in epochs[0]] != [batch.tolist() for batch in epochs[1]]
    assert LengthBuckets(lengths, 8, seed=3).batch(steps + 1).tolist() == epochs[1][1].tolist()
    assert order.smallest == min(len(batch) for batch in epochs[0]) == 1
    assert len(LengthBuckets(lengths, 8, seed=3).ends) < len(LengthBuckets(lengths, 4, seed=3).ends)


def test_processes_and_passes_share_a_batch():
    data = sequences([[number] * (number + 1) for number in range(8)])
    rows = ShuffledOrder(8, 8, seed=0).batch(0)
    seen = []
    for rank in (0, 1):
        parts = list(split_into_micro_batches(data, rows[rank::2], 2))
        assert [len(part) for part in parts] == [2, 2]
        assert all(part.tokens.shape[1] == int(part.stop.max()) for part in parts)
        assert int(parts[0].stop.max()) <= int(parts[1].stop.min())
        seen += [point[0] for part in parts for point in part.points()]
    assert sorted(seen) == list(range(8))


@pytest.mark.parametrize("processes", [1, 2])
def test_batches_too_small_for_the_processes_are_refused(processes):
    base = random_automaton(Space(3, 4, eos=0))
    data = sequences([[1, 2, 0], [1, 0], [2, 2, 2, 0]])
    workers = create_autospec(Accelerator, instance=True, num_processes=processes, process_index=0)
    if processes == 1:
        assert ShuffledBatches(data, Tilted(base), TrainingConfig(batch_tokens=4), workers).steps(1) == 3
    else:
        with pytest.raises(ValueError, match="as few as 1 sequences, too few for 2 processes"):
            ShuffledBatches(data, Tilted(base), TrainingConfig(batch_tokens=4), workers)
