"""Which mistakes the tests would notice: mutants of samplers, estimators and objectives, drawn at random, run by mutmut.

`run` makes the mutants, in `mutants/`, and runs each with the tests that touch its function; `table` counts by file. What is
mutated and which tests run is told in `pyproject.toml`. Three things mutmut does not do are added to it here: it mutates a
share of all mutants only, drawn file by file from a seed; it also enters functions under `@property` and `@torch.no_grad()`;
and it runs the cheapest tests first, by the processor's time, until `--seconds` of them have passed.
"""

import argparse
import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path

KINDS = ("killed", "timeout", "survived", "no tests")


def draw_mutants(share: float, seed: int) -> None:
    """Thin what mutmut makes of a file to the share asked for."""
    import libcst as cst
    from mutmut.mutation import file_mutation

    make = file_mutation.create_mutations

    def thinned(filename, code, *lines):
        module, mutations, *ignored = make(filename, code, *lines)
        inside = [mutation for mutation in mutations if isinstance(mutation.contained_by_top_level_function, cst.FunctionDef)]
        chosen = random.Random(f"{seed} {filename}").sample(range(len(inside)), round(share * len(inside)))
        return module, [inside[place] for place in sorted(chosen)], *ignored

    file_mutation.create_mutations = thinned


def enter_decorated() -> None:
    """Mutate under a decorator that stays outside: the mutants themselves are plain functions."""
    import libcst.matchers as m
    from mutmut.mutation import file_mutation

    skips, arrange = file_mutation.MutationVisitor._skip_node_and_children, file_mutation.function_trampoline_arrangement
    kept = m.Decorator(m.Name("property") | m.Call(m.Attribute(m.Name("torch"), m.Name("no_grad"))))
    entered = m.FunctionDef(decorators=[kept])

    def skipped(visitor, node):
        return not m.matches(node, entered) and skips(visitor, node)

    def arranged(function, mutants, class_name):
        before, (outer, *inner), after, names = arrange(function, mutants, class_name)
        if m.matches(function, entered):
            inner = [node.with_changes(decorators=[]) for node in inner]
        return before, [outer, *inner], after, names

    file_mutation.MutationVisitor._skip_node_and_children = skipped
    file_mutation.function_trampoline_arrangement = arranged


def order_tests(seconds: float) -> None:
    """Cheapest first, as many as fit; the run that finds out which test touches what stands for the run without mutants."""
    from _pytest import timing
    from mutmut.state import state
    from mutmut.workers.isolation import ForkServerRunner

    timing.perf_counter = time.process_time
    submit = ForkServerRunner.submit

    def ordered(runner, name, tests, limit, estimate):
        fitting, spent = [], 0.0
        for test in sorted(tests, key=state().duration_by_test.__getitem__):
            spent += state().duration_by_test[test]
            if spent > seconds and fitting:
                break
            fitting.append(test)
        submit(runner, name, fitting, limit, estimate)

    ForkServerRunner.submit = ordered
    ForkServerRunner.run_clean_tests = lambda runner, tests: 0


def run(share: float, seed: int, seconds: float, processes: int) -> None:
    """From the start: nothing of an earlier run is kept."""
    from mutmut.__main__ import _run

    shutil.rmtree("mutants", ignore_errors=True)
    draw_mutants(share, seed)
    enter_decorated()
    order_tests(seconds)
    _run((), processes)


def table() -> None:
    """Rows of the last run, by file and in all, and the share killed with its interval."""
    import torch
    from mutmut.stats import status_by_exit_code

    from esscher.estimators.intervals import proportion

    total: Counter[str] = Counter()
    print(f"| file | mutants | {' | '.join(KINDS)} |\n| --- | {'--: | ' * (1 + len(KINDS))}")
    for meta in sorted(Path("mutants/esscher").rglob("*.meta")):
        verdicts = Counter(status_by_exit_code[code] for code in json.loads(meta.read_text())["exit_code_by_key"].values())
        if verdicts:
            print(row(meta.relative_to("mutants/esscher").with_suffix("").as_posix(), verdicts))
        total += verdicts
    print(row("all", total))
    noticed = torch.zeros(total.total(), dtype=torch.float64)
    noticed[: total["killed"] + total["timeout"]] = 1
    share = proportion(
        lambda counts: counts @ noticed / counts.sum(),
        [(1, len(noticed))],
        confidence=0.95,
        n=len(noticed),
        method="share noticed",
    )
    print(
        f"\nnoticed: {share.value:.1%}, 95 % interval {share.low:.1%} to {share.high:.1%}; others: {total.keys() - set(KINDS)}"
    )


def row(name: str, verdicts: Counter[str]) -> str:
    return f"| {name} | {verdicts.total()} | {' | '.join(str(verdicts[kind]) for kind in KINDS)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "table"])
    parser.add_argument("--share", type=float, default=0.05, help="of all mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of tests a mutant, as the processor counts them")
    parser.add_argument("--processes", type=int, default=2)
    words = parser.parse_args()
    if words.verb == "run":
        run(words.share, words.seed, words.seconds, words.processes)
    else:
        table()
