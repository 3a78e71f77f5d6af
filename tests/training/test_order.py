"""The order of the data: every sequence once an epoch, the same for the same seed, shared without overlap."""

import torch

from esscher.space import sequences
from esscher.training.order import Order, passes


def test_every_sequence_once_an_epoch_and_other_orders_in_other_epochs():
    order = Order(10, 4, seed=3)
    stream = torch.cat([order.batch(step) for step in range(5)])
    assert sorted(stream[:10].tolist()) == sorted(stream[10:].tolist()) == list(range(10))
    assert stream[:10].tolist() != stream[10:].tolist()


def test_a_batch_does_not_depend_on_what_was_asked_before():
    assert Order(10, 4, seed=3).batch(7).tolist() == Order(10, 4, seed=3).batch(7).tolist()
    assert Order(10, 4, seed=3).batch(7).tolist() != Order(10, 4, seed=4).batch(7).tolist()
    assert len(Order(3, 8, seed=0).batch(2)) == 8


def test_processes_and_passes_share_a_batch():
    data = sequences([[number] * (number + 1) for number in range(8)])
    rows = Order(8, 8, seed=0).batch(0)
    seen = []
    for rank in (0, 1):
        parts = list(passes(data, rows, rank=rank, processes=2, count=2))
        assert [len(part) for part in parts] == [2, 2]
        assert all(part.tokens.shape[1] == int(part.stop.max()) for part in parts)
        assert int(parts[0].stop.max()) <= int(parts[1].stop.min())
        seen += [point[0] for part in parts for point in part.points()]
    assert sorted(seen) == list(range(8))
