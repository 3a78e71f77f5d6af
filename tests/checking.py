"""The type checker that runs with the tests: beartype, an int accepted where a float is meant."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
