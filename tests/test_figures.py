"""Figures in README and docs are what their command printed."""

import json
import subprocess
import sys

import figures
import figures_images
import figures_laboratory
import figures_translation
import figures_xlnet
import pytest


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: str(page.relative_to(figures.ROOT)))
def test_pages_show_the_figures_that_were_recorded(page):
    text = page.read_text(encoding="utf8")
    assert figures.rendered(text) == text, "stale: run `python tests/figures.py render`"


def test_a_changed_figure_makes_its_pages_stale(tmp_path, monkeypatch):
    recorded = json.loads((figures.FIGURES / "quickstart.json").read_text())
    recorded["figures"]["nats"]["tilted"] += 0.001
    (tmp_path / "quickstart.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    readme = (figures.ROOT / "README.md").read_text(encoding="utf8")
    assert figures.rendered(readme) != readme


def test_a_study_that_is_not_complete_has_no_verdict():
    about = {"process": "motif", "network": "LSTM", "strings": 50, "seeds": 5, "likelihood": 0.5}
    effect = {**about, "method": "one", "KL": [3.0, 1.0, 5.0], "prefix KL": [1.0, -1.0, 3.0], "verdict": "gains"}
    verdicts = [{"method": "one", "conditions": 1, "gains": 1, "open": 0, "loses": 0, "verdict": "reproduced"}]
    complete, partial = ({"missing": missing, "verdicts": verdicts, "effects": [effect]} for missing in (0, 7))
    assert "reproduced" in figures.laboratory_verdicts(complete) and "reproduced" not in figures.laboratory_verdicts(partial)
    assert "7 rows are not made" in figures.laboratory_status(partial) and "5 seeds" in figures.laboratory_status(complete)
    assert "| **3.0 [1.0, 5.0]** |" in figures.laboratory_effects(complete, "KL")
    assert "| 1.0 [-1.0, 3.0] |" in figures.laboratory_effects(complete, "prefix KL")


def test_images_have_a_verdict_when_they_are_complete():
    effect = {
        "images": "digits, few", "network": "PixelCNN", "model": "E-Forcing", "seeds": 5, "likelihood": [0.5, 0.4, 0.6],
        "saved": [0.01, 0.005, 0.015], "last saved": [0.01, -0.002, 0.03], "rise saved": [0.1, 0.05, 0.2], "of likelihood": 1,
        "verdict": "gains",
    }  # fmt: skip
    verdicts = [{"model": "E-Forcing", "conditions": 1, "gains": 1, "open": 0, "loses": 0, "verdict": "reproduced"}]
    level = {"images": effect["images"], "network": effect["network"]}
    levels = [
        {**level, "model": model, "late rise": [rise, 0.01, 0.2]} for model, rise in (("likelihood", 0.1), ("E-Forcing", 0.04))
    ]
    about = {"made": 3, "verdicts": verdicts, "effects": [effect], "over seeds": levels}
    complete, partial = ({"missing": missing, **about} for missing in (0, 7))
    assert figures_images.best_and_last(complete, "E-Forcing") == (
        " weights of the lowest validation loss: *reproduced* (of 1 conditions 1 gain, 0 lose); "
        "last weights: *open* (of 1 conditions 0 gain, 0 lose) "
    )
    smaller = " smaller: *reproduced* (of 1 conditions 1 gain, 0 lose); gone, as in the paper's figure: *refuted under these "
    assert figures_images.rise(complete, "E-Forcing").startswith(f"{smaller}conditions* (40 to 40 % of it remain) ")
    assert (
        figures_images.best_and_last(partial, "E-Forcing")
        == figures_images.rise(partial, "E-Forcing")
        == " *open*: not complete "
    )
    assert "| 1 of 5 | gains |" in figures.image_effects(complete) and "| gains |" not in figures.image_effects(partial)
    assert "**0.0100 [0.0050, 0.0150]** | 0.0100 [-0.0020, 0.0300] |" in figures.image_effects(complete)
    assert "7 are not" in figures.image_status(partial) and "no network has two seeds" in figures.image_summary(
        {**about, "effects": []}, "E-Forcing"
    )


def test_averages_of_the_laboratory_have_their_verdicts_when_it_is_complete():
    row = {"prefix KL": [1.0, -1.0, 3.0], "after own prefixes": [2.0, -1.0, 5.0], "own energy": [-4.0, -5.0, -3.0]}
    name = "E-Forcing, published, drawn"
    groups = {"all conditions": (2.0, "reproduced"), "motif": (4.0, "reproduced"), "hidden Markov": (0.5, "open")}
    averages = [
        {**row, "over": over, "method": method, "KL": [value, value - 1, value + 1], "verdict": verdict}
        for method in ("likelihood", name)
        for over, (value, verdict) in groups.items()
    ]
    counts = [{"method": name, "conditions": 9, "gains": 2, "open": 6, "loses": 1, "verdict": "open"}]
    complete, partial = ({"missing": missing, "averages": averages, "verdicts": counts} for missing in (0, 7))
    assert figures_laboratory.headline(complete, name) == (
        " saves in per cent, mean of 9 conditions: **2.0 [1.0, 3.0]** (motif **4.0 [3.0, 5.0]**, hidden Markov "
        "0.5 [-0.5, 1.5]); 2 of them gain and 1 lose "
    )
    verdict = " by the count of conditions *open*; on average *reproduced* (motif *reproduced*, hidden Markov *open*) "
    assert figures_laboratory.headline_verdict(complete, name) == verdict
    assert figures_laboratory.headline_verdict(partial, name) == " *open*: not complete "
    assert "| reproduced | open |" in figures_laboratory.averages_by_group(complete)
    assert "reproduced" not in figures_laboratory.averages_by_group(partial)
    assert "| likelihood |  |  |  | **-4.0 [-5.0, -3.0]** |" in figures_laboratory.averages_by_divergence(complete)
    assert "published **-4.0 [-5.0, -3.0]**" in figures_laboratory.own_energy(complete)


def test_tasks_have_a_verdict_over_texts_and_say_what_is_not_run():
    level = {"text": "a", "task": "order", "pretrained": "permutation LM", "seeds": 3, "accuracy": [60.0, 58.0, 62.0]}
    control = {**level, "pretrained": "naive Bayes", "seeds": 1, "accuracy": [49.0, 45.0, 53.0]}
    part = {**level, "text": "a, parts and budgets", "pretrained": "K = 7"}
    effect = {"text": "a", "task": "order", "pretrained": "permutation LM", "against": "denoising", "seeds": 3}
    up, none, down = (
        {**effect, "gained": gained, "verdict": verdict}
        for gained, verdict in (
            ([5.0, 1.0, 9.0], "reproduced"), ([1.0, -3.0, 5.0], "open"), ([-5.0, -9.0, -1.0], "refuted under these conditions")
        )
    )  # fmt: skip

    def verdict(*effects):
        return figures_xlnet.task_verdict({"effects": effects}, "permutation LM", "denoising", by_likelihood=False)

    assert verdict() == " *open*: not run " and verdict(up, up, none).startswith(" *reproduced*: 2 of 3")
    assert verdict(up, none).startswith(" *open*") and verdict(up, up, down).startswith(" *open*")
    assert verdict(up, down, down).startswith(" *refuted under these conditions*: 1 of 3 reproduced, 2 refuted")
    made = {"missing": 2, "levels": [level, control, part], "effects": [up]}
    assert "| a | two sentences exchanged or not (50 %) | 49 [45, 53] | *not run* |" in figures_xlnet.task_levels(made)
    assert "| K = 7 | 60 [58, 62] | *not run* | *not run* | *not run* | *not run* |" in figures_xlnet.task_parts(made)
    assert "| **5 [1, 9]** | *reproduced* |" in figures_xlnet.task_effects(made) and "2 rows" in figures_xlnet.task_status(made)
    empty = {"missing": 9, "levels": [], "effects": []}
    assert "*Not run" in figures_xlnet.task_levels(empty) and "*Not run" in figures_xlnet.task_effects(empty)
    assert "K = 7" not in figures_xlnet.task_levels(made)


def test_a_table_of_spans_says_what_is_not_made_and_what_one_seed_cannot():
    numbers = {"denoising": [0.5, 0.4, 0.6], "permutation LM": [0.1, 0.0, 0.2], "saved": [0.4, 0.3, 0.5]}
    numbers |= {"denoising, filled": [0.2, 0.1, 0.3], "filled minus permutation LM": [0.1, -0.1, 0.3]}
    row = {"process": "phrases", "span": 2, "entropy": [0.9] * 3, "independence": [0.45] * 3, **numbers}
    rows = [{**row, "seeds": 3, "verdict": "reproduced"}, {**row, "span": 3, "seeds": 1, "verdict": "open"}]
    text = figures_xlnet.span_table({"missing": 7, "effects": rows})
    assert (
        "| 0.450 | 0.5 [0.4, 0.6] | 0.1 [0, 0.2] | 0.4 [0.3, 0.5] | *reproduced* | 0.2 [0.1, 0.3] | 0.1 [-0.1, 0.3] |" in text
    )
    assert (
        "| phrases | 3 | 1 | 0.900 | 0.450 | 0.5 | 0.1 | 0.4 | *open* | 0.2 | 0.1 |" in text and "7 rows are not made" in text
    )


def test_a_table_of_games_has_ten_columns_and_a_line_of_the_thesis():
    recorded = json.loads((figures.FIGURES / "energy_gan.json").read_text())["figures"]
    head, _, ours, thesis, *_ = figures.energy_gan_table(recorded).strip().splitlines()
    assert head.count("‖") == 11 and ours.count("|") == thesis.count("|") == head.count("|")
    assert "| thesis | 0.303 | 0.502 | 0.25 | 0.481 | 6.76 | 2.06 | 6.2 | 2.06 | 2.46 | 7.09 |  |" in thesis
    about = {"claim": "nearer", "process": "spirals", "quantity": "KL(disc||data)", "thesis": 0.5}
    claims = [{**about, "ratio": [0.2, 0.1, 0.4], "verdict": "reproduced"}, {**about, "ratio": None, "verdict": "open"}]
    text = figures.energy_gan_claims({"missing": 0, "claims": claims})
    assert (
        "| 0.2 [0.1, 0.4] | 0.5 | *reproduced* |" in text and "| one seed | 0.5 | *open* |" in text and "not made" not in text
    )


@pytest.mark.slow
def test_the_quick_start_gives_the_recorded_figures(tmp_path):
    command = [sys.executable, "-m", "esscher", "reproduce", "quickstart", "--scale", "small", "--out", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True)
    recorded = json.loads((figures.FIGURES / "quickstart.json").read_text())["figures"]
    again = figures.quickstart_figures(tmp_path / "run")  # another machine rounds otherwise, and so draws some other texts
    assert again["nats"] == pytest.approx(recorded["nats"], abs=2e-3)
    assert {name: share[0] for name, share in again["shares"].items()} == pytest.approx(
        {name: share[0] for name, share in recorded["shares"].items()}, abs=0.1
    )


def test_a_page_on_translation_has_the_effects_of_both_pairs_and_their_verdicts():
    numbers = [0.4, 0.1, 0.7]
    names = ("likelihood", "likelihood, E-Forcing")
    about = [{"pairs": "pairs", "system": name, "seeds": 3} for name in names]
    gains = [None, numbers]
    figures_of = {
        "rows": [{"system": name, "seed": 0, "decoded": "greedy", "BLEU": 41.2} for name in names],
        "settings": [
            {"setting": "rate", "value": value, "validation": 1.5 - value, "chosen": chosen}
            for value, chosen in ((0.1, False), (0.2, True))
        ],
        "over seeds": [
            {**row, "decoded": decoded, "BLEU": [41.0, 40.0, 42.0], "gained": gained, "perplexity": [3.0, 2.9, 3.1]}
            for row, gained in zip(about, gains, strict=True)
            for decoded in ("greedy", "one draw")
        ],
        "by length over seeds": [
            {**about[1], "decoded": "greedy", "words": group, "BLEU": [41.0, 40.0, 42.0], "gained": [0.1, -0.2, 0.4]}
            for group in ("[0, 6)", "[9, inf)")
        ],
        "metrics over seeds": [
            {**row, "metric": "rouge2", "value": [30.0, 29.0, 31.0], "gained": gained}
            for row, gained in zip(about, gains, strict=True)
        ],
        "own energy over seeds": [{**about[1], "decoded": "one of 5 draws by the own energy", "gained": [-1.0, -2.0, -0.5]}],
        "exposure over seeds": [{**about[1], "ratio": [0.52, 0.51, 0.53]}],
        "curves over seeds": [{**row, "validation": numbers, "fell": numbers, "rose": numbers} for row in about],
        "verdicts": [
            {**about[1], "claim": "BLEU", "decoded": "greedy", "effect": numbers, "verdict": "reproduced"},
            {
                **about[1],
                "system": "mean of both",
                "claim": "BLEU",
                "decoded": "greedy",
                "effect": [0, -1, 1],
                "verdict": "open",
            },
            {**about[1], "claim": "exposure", "effect": [0.52, 0.49, 0.55], "verdict": "open"},
        ],
    }
    shown = {name: block(figures_of) for name, block in figures_translation.BLOCKS.items() if "_" not in name}
    assert "0.1 (1.4000), **0.2 (1.3000)**" in shown["settings"]
    assert "| likelihood, E-Forcing | greedy | 41.2 | 41.0 [40.0, 42.0] | **0.40 [0.10, 0.70]** |" in shown["systems"]
    assert "| 0 to 5 |" in shown["lengths"] and "| 9 or more |" in shown["lengths"] and "ROUGE-2" in shown["metrics"]
    assert "| **0.520 [0.510, 0.530]** |" in shown["exposure"] and "fell in the last quarter" in shown["curves"]
    own = figures_translation.own_energy(figures_of)
    assert "| likelihood, E-Forcing | 41.0 [40.0, 42.0] | **-1.00 [-2.00, -0.50]** |" in own
    assert figures_translation.headline(figures_of, "BLEU", "greedy") == (
        " 3 seeds, BLEU gained: likelihood **0.40 [0.10, 0.70]**; mean of both 0.00 [-1.00, 1.00] "
    )
    assert (
        figures_translation.headline_verdict(figures_of, "BLEU", "greedy") == " likelihood *reproduced*; mean of both *open* "
    )
    assert figures_translation.headline_verdict(figures_of, "exposure") == " *open* "
    assert figures_translation.headline(figures_of, "exposure") == " 3 seeds: likelihood 0.520 [0.490, 0.550] "
