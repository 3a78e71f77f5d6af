"""Tables of global autoregressive models: what is not made is said, and a verdict asks how weak the base is."""

from figures_gam import (
    TOSSES,
    as_published,
    base_is,
    gam_beside_tables,
    gam_effects,
    gam_status,
    gam_verdicts,
    gam_weakness,
    published_weakness,
    ratios,
)

READING = "epochs of batches of 500"


def row(size, ratio, student=1.1, *, reading=READING, kind="pure", seed=0):
    about = {"data": kind, "|D|": size, "patience of 20": reading, "seed": seed, "student / H": student}
    return about | {"r / student": ratio, "motif: student / r": 40.0, "H": 0.49}


def missing(size, reading=READING, kind="pure"):
    return {"reading": reading, "size": size, "kind": kind}


def test_a_cell_that_is_not_made_is_said():
    some = {"rows": [row(500, 1.3), row(5000, 1.1)], "not made": [missing(1000), missing(500, "updates")]}
    text = gam_effects(some)
    assert "| pure | 500 | 1.24 ± 0.07; 1.19 ± 0.07; [32, 392] | 1.30; 1.10; 40 (1 motif, 1 seed) | *not run* |" in text
    assert "| pure | 5,000 |" in text and "| mixture |" not in text and "| 20,000 |" not in text  # not in the study
    assert "Not complete" in gam_status(some) and "2 of 4 rows" in gam_status(some)


def test_intervals_are_over_seeds_of_the_same_motifs():
    """Means of two motifs are 1.2, 1.3 and 1.25 with three seeds; a fourth has one motif and does not count."""
    pairs = [(1.1, 1.3), (1.2, 1.4), (1.25, 1.25)]
    rows = [row(500, ratio, seed=seed) for seed, pair in enumerate(pairs) for ratio in pair]
    half = 4.303 * 0.05 / 3**0.5
    interval = f"1.250 [{1.25 - half:.3f}, {1.25 + half:.3f}]; 1.100 [1.100, 1.100]; [40, 40] (2 motifs, 3 seeds)"
    assert ratios([*rows, row(500, 9.0, seed=3)]) == interval
    assert ratios(rows[:2]) == "1.20 ± 0.14; 1.10 ± 0.00; [40, 40] (2 motifs, 1 seed)"


def test_how_weak_a_base_is():
    """The paper's base of 500 strings: 1.24 times 1.19 is 1.48, where coin tosses have 1.37: 129 % of the way to them."""
    figures = {"rows": [row(500, 1.25, 1.2), row(1000, 1.0, 1.02), row(20000, 1.2, 1.1)], "not made": []}
    assert [base_is(figures, "pure", size, READING) for size in (500, 1000, 20000)] == ["as weak", "stronger", "weaker"]
    theirs, spread = published_weakness("pure", 500)
    assert 125 < theirs < 132 and 30 < spread < 36
    way = 100 * 0.5 / (TOSSES / 0.49 - 1)  # r / H is 1.5 of a motif whose coin tosses have 1.37
    assert f"| pure | 500 | {theirs:.0f} ± {spread:.0f} | {way:.0f}, as weak |" in gam_weakness(figures)
    assert published_weakness("mixture", 20000)[0] > 0


def test_a_verdict_compares_ratios_where_the_bases_are_alike():
    weak = [row(500, 1.25, 1.2), row(500, 1.23, 1.2)]
    strong = [row(20000, 1.1, 1.1)] * 2
    assert "| *reproduced* | base as weak, ratio within the paper's ±: 500 strings 1.24" in gam_verdicts(
        {"rows": [*weak, *strong], "not made": []}
    )
    assert "another base than the paper's at 20,000 (weaker)" in gam_verdicts({"rows": [*weak, *strong], "not made": []})
    assert "| *open* | 1 of 2 sizes are made" in gam_verdicts({"rows": weak, "not made": [missing(1000)]})
    assert "| *reproduced*, one motif |" in gam_verdicts({"rows": weak[:1], "not made": []})
    null = [row(20000, 0.99, 1.02)] * 2
    assert "| *open* | base as weak" in gam_verdicts({"rows": null, "not made": []})
    assert "where neither has an effect" in gam_verdicts({"rows": null, "not made": []})
    outside = [row(500, 1.05, 1.42), row(500, 1.05, 1.42)]
    assert "| *refuted under these conditions* | base as weak, ratio outside" in gam_verdicts({"rows": outside, "not made": []})
    assert "| *open* | base as weak, ratio outside" in gam_verdicts({"rows": outside[:1], "not made": []})
    assert "| *open* | another base" in gam_verdicts({"rows": strong, "not made": []})


def test_the_published_network_is_judged_by_its_interval_over_seeds():
    def figures(*ratios):
        return {"rows": [row(500, ratio, 1.2, seed=seed) for seed, ratio in enumerate(ratios)], "not made": []}

    verdict, reason = as_published(figures(1.25, 1.24, 1.26))
    weakness = 100 * (1.25 * 1.2 - 1) / (TOSSES / 0.49 - 1)
    assert verdict == "*reproduced*" and "1.25 [1.23, 1.27], the paper 1.24 ± 0.07; 3 seeds" in reason
    assert f"bases are {weakness:.0f}, " in reason
    assert as_published(figures(1.25, 1.24))[0] == "*open*"  # two seeds
    assert as_published(figures(1.0, 1.25, 1.5))[0] == "*open*"  # from below 1
    assert as_published(figures(1.41, 1.40, 1.42))[0] == "*refuted under these conditions*"
    assert as_published(figures(1.25, 1.33, 1.41))[0] == "*open*"  # the mean outside, the interval not


def test_comparisons_that_are_not_run_are_said():
    assert gam_beside_tables({"regimes": [], "students": []}) == "\n*Not run.*\n"
