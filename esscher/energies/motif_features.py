"""The seven features of the paper on global autoregressive models (Parshakova et al., 2019), for any motif and alphabet.

    m     the motif                           d1    a random string as long as the motif
    m+0   the motif and a 0 after it          d2    a random string two symbols longer
    m/2   the first half of the motif         d3    a random string half as long
    d0    the string begins with 0

Each is 0 where its string is present and 1 where it is absent. A bit vector such as "1001111", in the order m, m+0, m/2, d0,
d1, d2, d3, selects features. The random strings are distractors that should turn out not to matter; each has its own stream of
`rng`, whichever others are used. None of them contains the motif, or is contained in the motif and the 0 after it. "0" is the
first symbol of the alphabet; symbols are tokens 0, 1, ... as in `esscher.exact.languages`.
"""

from collections.abc import Callable

import torch

from esscher.core.randomness import Rng
from esscher.core.space import Space
from esscher.energies.declared_features import feature_from_spec, tally_from_spec
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import Feature
from esscher.exact.counting import check_motif
from esscher.exact.features import AutomatonFeature

NAMES = ("m", "m+0", "m/2", "d0", "d1", "d2", "d3")
TRIES = 10_000


def motif_features(motif: str, ft: str = "1001111", *, alphabet: str = "01", rng: Rng) -> list[Feature]:
    """The selected features, on tokens."""
    return [feature_from_spec(spec) for spec in declared_motif_features(motif, ft, alphabet=alphabet, rng=rng)]


def motif_tallies(motif: str, ft: str = "1001111", *, space: Space, alphabet: str = "01", rng: Rng) -> list[AutomatonFeature]:
    """The same features as exact tallies, over the space of a motif process."""
    return [tally_from_spec(spec, space) for spec in declared_motif_features(motif, ft, alphabet=alphabet, rng=rng)]


def declared_motif_features(
    motif: str, ft: str = "1001111", *, alphabet: str = "01", on: str = "tokens", rng: Rng
) -> tuple[FeatureSpec, ...]:
    """The same features as declarations, which can be saved with an energy; on text they read the symbols themselves."""
    strings = motif_strings(motif, ft, alphabet=alphabet, rng=rng)
    return tuple(_declared(name, string, alphabet, on) for name, string in strings.items())


def motif_strings(motif: str, ft: str = "1001111", *, alphabet: str = "01", rng: Rng) -> dict[str, str]:
    """The string of each selected feature, by its name."""
    check_motif(motif, len(motif), alphabet)
    _check_bits(ft)
    makers: dict[str, Callable[[], str]] = {
        "m": lambda: motif,
        "m+0": lambda: motif + alphabet[0],
        "m/2": lambda: _half(motif),
        "d0": lambda: alphabet[0],
        "d1": lambda: _distractor("d1", motif, len(motif), alphabet, rng=rng.stream("d1")),
        "d2": lambda: _distractor("d2", motif, len(motif) + 2, alphabet, rng=rng.stream("d2")),
        "d3": lambda: _distractor("d3", motif, len(motif) // 2, alphabet, rng=rng.stream("d3")),
    }
    return {name: makers[name]() for name, bit in zip(NAMES, ft, strict=True) if bit == "1"}


def _declared(name: str, string: str, alphabet: str, on: str) -> FeatureSpec:
    value = " ".join(str(alphabet.index(symbol)) for symbol in string) if on == "tokens" else string
    if name == "d0":
        return FeatureSpec("starts-with", value, name, on, negated=True)
    return FeatureSpec("lacks", value, name, on)


def _half(motif: str) -> str:
    if len(motif) < 2:
        raise ValueError(f"The motif {motif!r} is too short to have a half. No features were made; set the bit of m/2 to 0.")
    return motif[: len(motif) // 2]


def _distractor(name: str, motif: str, length: int, alphabet: str, *, rng: Rng) -> str:
    """A random string that neither contains the motif nor is contained in the motif and the 0 after it.

    One that should be shorter than the motif grows until there is such a string.
    """
    longest, forbidden = max(length, len(motif) - 1) if length < len(motif) else length, motif + alphabet[0]
    for size in range(max(1, length), longest + 1):
        inside = {forbidden[first : first + size] for first in range(len(forbidden) - size + 1)}
        if len(alphabet) ** size > len(inside) and (len(alphabet) > 1 or size < len(motif)):
            return _draw_outside(name, motif, inside, size, alphabet, rng=rng)
    raise ValueError(
        f"There is no string for {name} that is not in the motif {motif!r}: over the alphabet {alphabet!r} it is too short. "
        f"No features were made; set the bit of {name} to 0, or use a longer motif."
    )


def _draw_outside(name: str, motif: str, inside: set[str], size: int, alphabet: str, *, rng: Rng) -> str:
    even = torch.zeros(1, len(alphabet), dtype=torch.float64)
    for _ in range(TRIES):
        string = "".join(alphabet[symbol] for symbol in rng.categorical(even, size)[0].tolist())
        if string not in inside and motif not in string:
            return string
    raise ValueError(
        f"No string for {name} without the motif {motif!r} was found in {TRIES:,} tries. No features were made; use a longer "
        f"motif, or set the bit of {name} to 0."
    )


def _check_bits(ft: str) -> None:
    if len(ft) != len(NAMES):
        raise ValueError(f"A bit vector has {len(NAMES)} bits, for {', '.join(NAMES)}; {ft!r} has {len(ft)}.")
    for name, bit in zip(NAMES, ft, strict=True):
        if bit not in "01":
            raise ValueError(f"A bit is 0 or 1; in {ft!r} that of {name} is {bit!r}.")
    if "1" not in ft:
        raise ValueError(f"The bit vector {ft!r} chooses no feature; set at least one bit to 1.")
