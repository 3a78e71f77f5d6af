"""The laws of the library as assertions, for its own tests and for a base, energy, head, objective or sampler of yours. Each
raises AssertionError with the law and the numbers; the statistical ones state their false-alarm rate."""

from esscher.testing.interval_laws import TEXT_LAWS, WEIGHT_LAWS, log_z_coverage, rate_coverage
from esscher.testing.laws import check_base, check_energy, check_head, check_objective, check_stream, every_outcome
from esscher.testing.statistics import assert_covers, assert_draws_follow, check_sampler

__all__ = [
    "TEXT_LAWS", "WEIGHT_LAWS", "assert_covers", "assert_draws_follow", "check_base", "check_energy", "check_head",
    "check_objective", "check_sampler", "check_stream", "every_outcome", "log_z_coverage", "rate_coverage",
]  # fmt: skip
