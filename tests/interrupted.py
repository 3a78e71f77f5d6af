"""A run that breaks off: what tests of resuming share."""

from esscher.objectives.likelihood import Likelihood


class Killed(Exception):
    pass


def killed_once(target, data, *, rng, step=0):
    """Likelihood that does not come through its seventh update."""
    if step == 6:
        raise Killed
    return Likelihood()(target, data, rng=rng, step=step)
