"""Tables of E-Forcing on texts and backbones, from figures whose answer is known."""

import figures_text


def row(text, model, saved, **others):
    settings = {"parameters": 1_000, "rate": 0.01, "strength": 3.0, "likelihood at step": [50, 60], "of steps": [100, 100]}
    levels = {"likelihood": [40.0, 39.0, 41.0], "perplexity": [39.0, 38.0, 40.0], "likelihood rise": [0.2, 0.1, 0.3]}
    effect = {
        "saved": saved,
        "rise saved": [0.1, 0.05, 0.15],
        "of likelihood": 1,
        "verdict": "gains" if saved[1] > 0 else "open",
    }
    return {"text": text, "model": model, "seeds": 3, **settings, **levels, **effect, **others}


GAIN, NONE = [0.02, 0.01, 0.03], [0.01, -0.01, 0.03]
VERDICT = {"model": figures_text.FORCED, "conditions": 2, "gains": 1, "open": 1, "loses": 0, "verdict": "open"}
EFFECTS = [
    row("a novel", figures_text.FORCED, GAIN),
    row("a novel, dropout", figures_text.FORCED, NONE),
    row("a novel, other starts", f"{figures_text.FORCED} after 8 epochs", NONE),
]
AVERAGES = [{"model": figures_text.FORCED, "seeds": 3, "saved": GAIN, "texts": 2}]
COMPLETE = {"missing": 0, "verdicts": [VERDICT], "averages": AVERAGES, "effects": EFFECTS, "rows": [{}] * 9}


def test_rows_have_their_text_regularisation_and_verdict():
    table = figures_text.TEXT_BLOCKS["effects"](COMPLETE).splitlines()
    assert len(table) == 1 + 2 + 2 + 1, "two texts, a mean, and no start"
    assert table[3].startswith("| a novel | nothing | E-Forcing | 3 | 40.00 | 39.00 | **0.0200 [0.0100, 0.0300]** |")
    assert table[3].endswith("| 50 to 60 % | 1 of 3 | gains |")
    assert table[4].startswith("| a novel | dropout |") and "| 0.0100 [-0.0100, 0.0300] |" in table[4]
    assert table[5].startswith("| mean of 2 |  | E-Forcing | 3 |")


def test_starts_stand_in_order_and_what_was_not_run_says_so():
    table = figures_text.TEXT_BLOCKS["starts"](COMPLETE).splitlines()
    assert [line.split(" | ")[0] for line in table[3:]] == ["| 3", "| 8"] and table[3].endswith("*not run* | *not run* |")


def test_a_verdict_has_its_reason_and_waits_for_all_rows():
    partial = COMPLETE | {"missing": 7}
    assert figures_text.verdict(COMPLETE, figures_text.FORCED) == " *open*: gains in 1 and loses in 0 of 2 conditions "
    assert (
        figures_text.verdict(partial, figures_text.FORCED)
        == " *open*: not complete; gains in 1 and loses in 0 of 2 conditions that are made "
    )
    assert "7 rows are not made" in figures_text.status(partial)
    cell = figures_text.summary(COMPLETE, figures_text.FORCED)
    assert cell.startswith(" a novel **0.0200 [0.0100, 0.0300]** bits (1.4 %);") and "gains in 1 and loses in 0" in cell


def test_backbones_name_the_networks_that_gain():
    networks = [row("a novel, GRU", form, GAIN if form == figures_text.FORCED else NONE) for form in figures_text.FORMS]
    figures = COMPLETE | {"effects": [*networks, row("a novel, DEQ", figures_text.LAYERS, NONE)]}
    cell = figures_text.backbone_summary(figures)
    assert "(gains: GRU)" in cell and cell.count("gains:") == 1
    assert figures_text.LAYERS not in figures_text.BACKBONE_BLOCKS["effects"](figures)
    assert figures_text.settings(figures).splitlines()[3] == "| GRU | 1,000 | 0.01 |"


def test_the_late_rise_has_its_verdict_when_all_rows_are_made():
    complete, partial = (figures_text.rise_verdict(COMPLETE | {"missing": missing}) for missing in (0, 7))
    gains = "as published gains in 2 and loses in 0 of 2 conditions; 50 to 50 % of it remain"
    assert complete.startswith(f" smaller: *reproduced*: {gains}; *open*: counted once")
    assert partial.startswith(f" smaller: *open*: not complete; {gains}") and "reproduced" not in partial
