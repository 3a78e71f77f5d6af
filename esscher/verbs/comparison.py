"""Data beside draws of a model after the same prompts, gathered for the analyses with progress shown."""

from collections.abc import Callable

from esscher.estimators.populations import Populations, populations
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences, distinct_prompts
from esscher.target import Tilted, flat
from esscher.training.draws_in_pieces import collect


def gather(
    target: Tilted, x: Sequences, draws: int, *, rng: Rng, say: Callable[[str], None] = lambda text: None
) -> Populations:
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
