"""Rank and world size of this process, without torch: rank 0 of 1 unless launched by `torchrun`."""

import os


def rank() -> int:
    """The rank of this process."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The rank among the processes of this machine: the GPU that is this process's own."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_process() -> bool:
    """Whether this is rank 0, which writes files and reports progress."""
    return rank() == 0
