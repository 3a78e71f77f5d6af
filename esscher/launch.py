"""The place of this process among those that `torchrun` started together: one of one, where nobody did.

Without torch, so that a verb knows who speaks before it loads anything; how processes talk to each other is in
`esscher.training.processes`.
"""

import os


def rank() -> int:
    """The number of this process."""
    return int(os.environ.get("RANK", "0"))


def started() -> int:
    """How many processes were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_process() -> bool:
    """True in the process that writes files and speaks."""
    return rank() == 0
