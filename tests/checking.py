"""Shapes and types in signatures, checked while the tests run: jaxtyping's shapes by beartype, an int taken for a float.

A check may take longer than the function, so a function is checked in its first calls of every test and then left alone: a
thousand repeats are checked by the first ones.
"""

import functools
import inspect

import jaxtyping
from beartype import BeartypeConf, beartype

CHECKED = 8  # calls of a function in one test

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
_always, _tests = jaxtyping._decorator.jaxtyped, [0]


def _at_first(made=jaxtyping._decorator._sentinel, *, typechecker):
    """`jaxtyped`, but only for the first calls; classes and properties come back here with their functions."""
    if not inspect.isfunction(made):
        return _always(made, typechecker=typechecker)
    checked, test, calls = None, 0, 0

    @functools.wraps(made)
    def sparing(*args, **kwargs):
        nonlocal checked, test, calls
        if test != _tests[0]:
            test, calls = _tests[0], 0
        if calls == CHECKED:  # no more counting, so that the digest of the function stays as it is
            return made(*args, **kwargs)
        calls += 1
        if checked is None:
            checked = _always(made, typechecker=typechecker)
        return checked(*args, **kwargs)

    return sparing


def check_package(name):
    """Check what this package's functions are given and give back, from its import on."""
    jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = _at_first
    jaxtyping.install_import_hook(name, "checking.typechecker")


def begin_test():
    """Look at first calls anew."""
    _tests[0] += 1
