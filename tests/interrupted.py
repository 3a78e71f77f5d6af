"""A run that breaks off: what tests of resuming share."""

import contextlib

from esscher.objectives.likelihood import Likelihood


class Killed(Exception):
    pass


def killed_once(target, data, *, rng, step=0):
    """Likelihood that does not come through its seventh update."""
    if step == 6:
        raise Killed
    return Likelihood()(target, data, rng=rng, step=step)


def stopped_and_resumed(run, new_base, folder, told):
    """A base that was stopped at an event within this process, and resumed by another whose first weights must not matter.

    `told` makes the events, given what to do at one of them.
    """

    def stop() -> None:
        raise Killed

    with contextlib.suppress(Killed):
        run(new_base(), folder, told=told(stop))
    base = new_base(seed=77)
    run(base, folder, resume=True)
    return base
