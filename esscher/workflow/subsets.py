"""Some of the sequences of a data set: evenly spread, by chance, or in three parts with no prompt in common."""

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.core.randomness import Rng
from esscher.core.space import Sequences, unique_prompts


def evenly_spaced(size: int, count: int) -> Int[Tensor, "K"]:
    """So many of the numbers below `size`, evenly spread; all of them, if there are no more."""
    return torch.arange(min(size, count)) * size // min(size, count)


def evenly_spaced_rows(x: Sequences, count: int | None) -> Sequences:
    """So many of the rows, evenly spread; all of them, if there are no more."""
    return x if count is None else x.rows(evenly_spaced(len(x), count))


def random_rows(x: Sequences, count: int, *, rng: Rng) -> Sequences:
    """`count` rows by chance, in their order; all, if there are fewer."""
    if count < 1:
        raise ValueError(f"At least one sequence is needed, not {count}. Nothing was done.")
    if count >= len(x):
        return x
    return x.rows(rng.permutation(len(x))[:count].sort().values.to(x.tokens.device))


def split_by_prompt(x: Sequences, shares: tuple[float, float], *, rng: Rng) -> tuple[Sequences, Sequences, Sequences]:
    """Rows for training, validation (first share) and test (second); no prompt is in two of them, unless there is only one."""
    prompts, context = unique_prompts(x)
    unit = torch.arange(len(x)) if len(prompts) == 1 else context.cpu()
    count = int(unit.max()) + 1 if len(x) else 0
    sizes = [round(share * count) for share in shares]
    if min(*sizes, count - sum(sizes)) < 2:
        raise ValueError(
            f"{count} different prompts (or sequences, after one prompt) cannot be shared out among learning, choosing and "
            f"judging, at least 2 for each. Nothing was done; give more data."
        )
    place = torch.empty(count, dtype=torch.long)
    place[rng.permutation(count)] = torch.arange(count)
    ends = sizes[0], sizes[0] + sizes[1]
    part = (place[unit] >= ends[0]).long() + (place[unit] >= ends[1]).long()
    choose, judge, learn = (x.rows((part == number).nonzero()[:, 0].to(x.tokens.device)) for number in range(3))
    return learn, choose, judge
