import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.energies.declared_features import features_from_specs
from esscher.energies.features import feature_values
from esscher.energies.motif_features import NAMES, declared_motif_features, motif_features, motif_strings, motif_tallies
from esscher.exact.enumeration import enumerate_points
from esscher.exact.exponential_family import exact_moment_weights, exponential_family
from esscher.exact.languages import motif_process, white_noise

PAPER = ["10001011111000", "01011101101", "001001100111", "1011100111001", "10001010001", "100010100011"]


def by_hand(strings: dict[str, str], text: str) -> list[float]:
    """The paper's rule, on the text: 0 where present, 1 where absent."""
    return [float(not (text.startswith(item) if name == "d0" else item in text)) for name, item in strings.items()]


@pytest.mark.parametrize("motif", PAPER)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_strings_of_the_paper(motif, seed):
    actual = motif_strings(motif, "1111111", rng=SeededRng(seed))
    assert tuple(actual) == NAMES
    assert (actual["m"], actual["m+0"], actual["m/2"], actual["d0"]) == (motif, motif + "0", motif[: len(motif) // 2], "0")
    assert [len(actual[name]) for name in ("d1", "d2", "d3")] == [len(motif), len(motif) + 2, len(motif) // 2]
    for name in ("d1", "d2", "d3"):
        assert motif not in actual[name] and actual[name] not in motif + "0"


def test_distractors_are_fixed_by_the_seed_alone():
    whole = motif_strings(PAPER[0], "1111111", rng=SeededRng(3))
    some = motif_strings(PAPER[0], "0000101", rng=SeededRng(3))
    assert some == {name: whole[name] for name in ("d1", "d3")}
    rng = SeededRng(3)
    assert motif_strings(PAPER[0], "1111111", rng=rng) == motif_strings(PAPER[0], "1111111", rng=rng) == whole
    assert whole != motif_strings(PAPER[0], "1111111", rng=SeededRng(4))


@pytest.mark.parametrize(
    ("ft", "names"),
    [
        ("1001111", ["m", "d0", "d1", "d2", "d3"]),
        ("1011111", ["m", "m/2", "d0", "d1", "d2", "d3"]),
        ("0111111", ["m+0", "m/2", "d0", "d1", "d2", "d3"]),
    ],
)
def test_features_tallies_and_text_agree_with_the_rule_on_every_string(ft, names):
    process = motif_process("1011", length=8)
    x = enumerate_points(process.space, prompts_of([[], [1, 0]]))
    strings, rng = motif_strings("1011", ft, rng=SeededRng(0)), SeededRng(0)
    features = motif_features("1011", ft, rng=rng)
    assert [feature.name for feature in features] == names
    expected = torch.tensor([by_hand(strings, text) for text in process.decode(x)], dtype=torch.float64)
    assert torch.equal(feature_values(features, x), expected)
    for tally, column in zip(motif_tallies("1011", ft, space=process.space, rng=rng), expected.T, strict=True):
        assert torch.equal(tally(x), column)
    text = declared_motif_features("1011", ft, on="text", rng=rng)
    decode = {tuple(point): said for point, said in zip(x.points(), process.decode(x), strict=True)}
    as_text = features_from_specs(text, lambda points: [decode[tuple(point)] for point in points])
    assert torch.equal(feature_values(as_text, x), expected)
    present = features_from_specs(declared_motif_features("1011", ft, rng=SeededRng(1)))
    assert not torch.equal(feature_values(present, x), expected)  # other distractors are seen


def test_exact_moments_of_the_process_and_the_weights_that_give_them():
    process = motif_process("1011", length=8, mixture=0.9)
    tallies = motif_tallies("1011", "1001111", space=process.space, rng=SeededRng(0))
    moments, _ = exponential_family(process.base, tallies).moments(torch.zeros(5, dtype=torch.float64))
    x = enumerate_points(process.space)
    share = process.base.log_probs(x).sum(-1).exp()
    assert torch.allclose(moments, share @ feature_values(motif_features("1011", "1001111", rng=SeededRng(0)), x))
    assert moments[0] == pytest.approx(0.1)  # the share without the motif
    weights = exact_moment_weights(white_noise(2, 8), tallies, moments)
    reached, _ = exponential_family(white_noise(2, 8), tallies).moments(weights)
    assert torch.allclose(reached, moments, atol=1e-9)
    assert weights[0] < -3 and bool((weights[1:].abs() < 1e-6).all())  # the motif alone makes the process


def test_short_motifs_leave_little_choice():
    assert motif_strings("1", "0000010", rng=SeededRng(0)) == {"d2": "000"}
    for seed in range(20):
        assert motif_strings("101", "0000011", rng=SeededRng(seed))["d3"] in ("00", "11")  # one symbol is too short: all occur
        assert "11" not in motif_strings("11", "0000010", rng=SeededRng(seed))["d2"]


def test_other_alphabets():
    strings = motif_strings("cab", "1111111", alphabet="abc", rng=SeededRng(0))
    assert strings["m+0"] == "caba" and strings["m/2"] == "c" and strings["d0"] == "a"
    declared = declared_motif_features("cab", "1101000", alphabet="abc", rng=SeededRng(0))
    assert [item.value for item in declared] == ["2 0 1", "2 0 1 0", "0"]


@pytest.mark.parametrize(
    ("motif", "ft", "alphabet", "message"),
    [
        ("1011", "100111", "01", "has 7 bits, for m, m.0, m/2, d0, d1, d2, d3; '100111' has 6"),
        ("1011", "1002111", "01", "in '1002111' that of d0 is '2'"),
        ("1011", "0000000", "01", "chooses no feature"),
        ("1021", "1000000", "01", r"symbols \['2'\] that are not in the alphabet"),
        ("", "1000000", "01", "at least one symbol"),
        ("1", "1010000", "01", "too short to have a half"),
        ("1", "0000001", "01", "no string for d3 .* set the bit of d3 to 0"),
        ("1", "0000100", "01", "no string for d1"),
        ("00", "0000010", "0", "no string for d2"),
    ],
)
def test_bad_bits_and_motifs(motif, ft, alphabet, message):
    with pytest.raises(ValueError, match=message):
        motif_features(motif, ft, alphabet=alphabet, rng=SeededRng(0))


def test_a_space_without_the_symbols_is_refused():
    with pytest.raises(ValueError, match="not among the 1 of the vocabulary"):
        motif_tallies("1011", "1000000", space=Space(1, 5), rng=SeededRng(0))
