"""The seven features of the paper on global autoregressive models (Parshakova et al., 2019), for any motif and alphabet.

    m     the motif                           d1    a random string as long as the motif
    m+0   the motif and a 0 after it          d2    a random string two symbols longer
    m/2   the first half of the motif         d3    a random string half as long
    d0    the string begins with 0

Each is 0 where its string is present and 1 where it is absent. A bit vector such as "1001111", in the order m, m+0, m/2, d0,
d1, d2, d3, selects features. Each random string has its own stream of `rng`. "0" is the first symbol of the alphabet; symbols
are tokens 0, 1, ...
"""

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
    specs = []
    for name, string in motif_strings(motif, ft, alphabet=alphabet, rng=rng).items():
        value = " ".join(str(alphabet.index(symbol)) for symbol in string) if on == "tokens" else string
        specs.append(FeatureSpec("starts-with" if name == "d0" else "lacks", value, name, on, negated=name == "d0"))
    return tuple(specs)


def motif_strings(motif: str, ft: str = "1001111", *, alphabet: str = "01", rng: Rng) -> dict[str, str]:
    """The string of each selected feature, by its name."""
    check_motif(motif, len(motif), alphabet)
    if len(ft) != len(NAMES):
        raise ValueError(f"A bit vector has {len(NAMES)} bits, for {', '.join(NAMES)}; {ft!r} has {len(ft)}.")
    bits = dict(zip(NAMES, ft, strict=True))
    for name, bit in bits.items():
        if bit not in "01":
            raise ValueError(f"A bit is 0 or 1; in {ft!r} that of {name} is {bit!r}.")
    if "1" not in ft:
        raise ValueError(f"The bit vector {ft!r} chooses no feature; set at least one bit to 1.")
    if bits["m/2"] == "1" and len(motif) < 2:
        raise ValueError(f"The motif {motif!r} is too short to have a half. No features were made; set the bit of m/2 to 0.")
    strings = {"m": motif, "m+0": motif + alphabet[0], "m/2": motif[: len(motif) // 2], "d0": alphabet[0]}
    for name, length in (("d1", len(motif)), ("d2", len(motif) + 2), ("d3", len(motif) // 2)):
        if bits[name] == "1":
            strings[name] = _distractor(name, motif, length, alphabet, rng=rng.stream(name))
    return {name: strings[name] for name, bit in bits.items() if bit == "1"}


def _distractor(name: str, motif: str, length: int, alphabet: str, *, rng: Rng) -> str:
    """A random string that neither contains the motif nor is contained in the motif and the 0 after it. One that should be
    shorter than the motif grows until there is such a string."""
    longest, forbidden = max(length, len(motif) - 1) if length < len(motif) else length, motif + alphabet[0]
    uniform = torch.zeros(1, len(alphabet), dtype=torch.float64)
    for size in range(max(1, length), longest + 1):
        inside = {forbidden[first : first + size] for first in range(len(forbidden) - size + 1)}
        if not (len(alphabet) ** size > len(inside) and (len(alphabet) > 1 or size < len(motif))):
            continue
        for _ in range(TRIES):
            string = "".join(alphabet[symbol] for symbol in rng.categorical(uniform, size)[0].tolist())
            if string not in inside and motif not in string:
                return string
        raise ValueError(
            f"No string for {name} without the motif {motif!r} was found in {TRIES:,} tries. No features were made; use a "
            f"longer motif, or set the bit of {name} to 0."
        )
    raise ValueError(
        f"There is no string for {name} that is not in the motif {motif!r}: over the alphabet {alphabet!r} it is too short. "
        f"No features were made; set the bit of {name} to 0, or use a longer motif."
    )
