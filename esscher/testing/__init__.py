"""The laws of the library as functions, for its own tests and for a base, energy, head, objective or sampler of yours.

    check_base(base, prompts)                    stepping equals scoring, sums to one, select commutes with advance, ...
    check_stream(base)                           a stream in pieces equals one long row, memories hold no gradient, ...
    check_head(head, hidden)                     log-probabilities, logsumexps and their gradients are those of the logits
    check_energy(energy, x)                      ignores padding, a batch equals one by one
    check_objective(objective, target, ...)      its gradient is that of the exact loss
    check_sampler(sampler, target, prompts)      prompts kept, seeds decide, log a(x) right, and draws that follow the target
    assert_draws_follow(target, prompts, draws)  weighted draws have the exact expectations, by enumeration
    every_outcome(run)                           run on every outcome of the random choices: exact expectations
    assert_covers(hits, replications, confidence)  an interval covers at its stated rate

Each raises AssertionError with the law and the numbers. The statistical ones state their false-alarm rate.
"""

from esscher.testing.laws import check_base, check_energy, check_head, check_objective, check_stream, every_outcome
from esscher.testing.statistics import assert_covers, assert_draws_follow, check_sampler

__all__ = [
    "assert_covers", "assert_draws_follow", "check_base", "check_energy", "check_head", "check_objective", "check_sampler",
    "check_stream", "every_outcome",
]  # fmt: skip
