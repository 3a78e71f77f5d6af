"""Data beside draws of a model after the same prompts, gathered for the analyses with progress shown."""

from collections.abc import Callable

import torch

from esscher.estimators.populations import Populations, populations
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences, distinct_prompts
from esscher.target import Tilted, flat
from esscher.training.collection import collect


def silence(text: str) -> None:
    """Say nothing."""


def gather(target: Tilted, x: Sequences, draws: int, *, rng: Rng, say: Callable[[str], None] = silence) -> Populations:
    """The data and `draws` of the base for each sequence: after each different prompt, or after one, as many for all."""
    if target.energy is flat:
        raise ValueError("There is no energy, so the joint is the base. Nothing was drawn; name the folder of one (--energy).")
    if len(x) == 0:
        raise ValueError("There is no sequence to compare with. Nothing was drawn; give more data.")
    if draws < 2:
        raise ValueError(f"A joint draw is chosen from at least 2 draws of the base, not {draws}. Nothing was drawn.")
    prompts, _ = distinct_prompts(x)
    each = draws * len(x) if len(prompts) == 1 else draws
    return populations(x, collect(Importance(), target, prompts, each, rng=rng, say=say))


def some_of(x: Sequences, count: int, *, rng: Rng) -> Sequences:
    """`count` rows by chance, in their order; all, if there are fewer."""
    if count < 1:
        raise ValueError(f"At least one sequence is needed, not {count}. Nothing was done.")
    if count >= len(x):
        return x
    return x.rows(rng.permutation(len(x))[:count].sort().values.to(x.tokens.device))


def split_by_prompt(x: Sequences, shares: tuple[float, float], *, rng: Rng) -> tuple[Sequences, Sequences, Sequences]:
    """Rows to learn from, to choose by (the first share) and to judge by (the second); no prompt is in two of them.

    Where all rows have one prompt, the rows themselves are shared out.
    """
    prompts, context = distinct_prompts(x)
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
