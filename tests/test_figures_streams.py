"""Tables of the recipes on long texts: what is not run is said, one seed has no interval, and verdicts are the recipe's."""

import json

import figures_softmax_bottleneck
import figures_streams
import figures_transformer_xl

from esscher.papers.softmax_bottleneck.claims import LARGE, LEARNT
from esscher.papers.softmax_bottleneck.studies import ALONE, AWD, MOS, SOFTMAX, WORDS

EMPTY = {"missing": 51, "levels": [], "ranks": [], "effects": [], "context lengths": [], "samples": []}


def level(text, model, bits, seeds=3, evaluated="as in training"):
    return {"text": text, "model": model, "evaluated": evaluated, "seeds": seeds, "bits": bits}


def rank(text, model, seeds=3):
    numbers = {"rank": [2_000.0, 2_000.0, 2_000.0], LARGE: [990.0, 980.0, 1_000.0], "divergence": [4.5, 4.25, 4.75]}
    return {"text": text, "model": model, "evaluated": "as in training", "seeds": seeds, **numbers}


def effect(claim, numbers, verdict, column="bits", seeds=3):
    return {"claim": claim, "column": column, "thesis": "-", "seeds": seeds, "effect": numbers, "verdict": verdict}


def test_every_block_renders_when_nothing_is_run():
    for module in (figures_softmax_bottleneck, figures_transformer_xl):
        for name, block in module.BLOCKS.items():
            text = block(EMPTY)
            assert text.startswith("\n") and text.endswith("\n"), name
            assert "reproduced" not in text and ("ot run*" in text or "51 models" in text or "not run" in text), name


def test_effects_have_their_verdict_and_digits():
    higher = "MoS has a higher rank than a softmax"
    made = [
        effect("MoS beats a softmax", [0.0823, 0.0271, 0.1382], "reproduced"),
        effect("MoC beats a softmax", [0.0301, -0.02, 0.08], "open"),
        effect("MoS beats MoC", [0.05, 0.05, 0.05], "open", seeds=1),
        effect(higher, [1934.0, 1934.0, 1934.0], "reproduced", "rank"),
    ]
    text = figures_softmax_bottleneck.BLOCKS["effects"](EMPTY | {"effects": made})
    assert "| MoS beats a softmax | bits saved | 3 | **0.0823 [0.0271, 0.1382]** | 58.95 → 55.97 | *reproduced* |" in text
    assert "| 3 | 0.0301 [-0.0200, 0.0800] |" in text and "| MoS beats MoC | bits saved | 1 | 0.0500 |" in text
    assert f"| {higher} | rank | 3 | **1,934** | 400 → 9,981 | *reproduced* |" in text
    assert text.endswith("; characters: MoS is no better than MoC (bits saved).\n") and "| characters:" not in text


def test_words_are_perplexities_and_eight_components_are_the_mixture_of_the_words():
    levels = [
        level(WORDS, MOS, [5.0, 4.0, 6.0]), level(WORDS, SOFTMAX, [5.0, 4.0, 6.0], seeds=1),
        level(ALONE, "MoS of 2", [3.0, 2.0, 4.0]), level(AWD, f"{MOS}, fine-tuned", [4.0, 4.0, 4.0], evaluated=LEARNT),
    ]  # fmt: skip
    made = EMPTY | {"levels": levels, "ranks": [rank(WORDS, MOS)]}
    assert "| MoS | 32.00 [16.00, 64.00] | *not run* |" in figures_softmax_bottleneck.levels(made)
    assert "| softmax | 32.00 (one seed) |" in figures_softmax_bottleneck.levels(made)
    assert "| MoS | 3 | 2,000 | 990 [980, 1,000] | 4.500 [4.250, 4.750] | 9,981 | 5.284 |" in figures_softmax_bottleneck.ranks(
        made
    )
    sweep = figures_softmax_bottleneck.sweep(made)
    assert (
        "| 8 | 32.00 [16.00, 64.00] | 2,000 | 990 [980, 1,000] | 4.500 [4.250, 4.750] | 32.00 [16.00, 64.00] |  |  |" in sweep
    )
    assert "| 2 | 8.00 [4.00, 16.00] | *not run* | *not run* | *not run* | *not run* |  |  |" in sweep
    assert "| 15 |  |  |  |  |  | 55.97 | 9,981 |" in sweep
    assert "| MoS, fine-tuned | learning from the text | 16.00 | 47.69 | 40.68 |" in figures_softmax_bottleneck.awd(made)


def test_a_longer_study_of_one_seed_and_its_sample():
    name = figures_transformer_xl.LONG
    levels = [level(name, "LSTM", [1.9, 1.8, 2.0], seeds=1), level("text8", "Transformer-XL", [2.2, 2.19, 2.21])]
    lengths = [
        {"text": name, "model": "LSTM", "seed": 0, **{f"hardest {share}": [96.0, 64.0, 128.0] for share in ("0.1", "0.5", "1")}}
    ]
    sample = {
        "text": name,
        "model": "Transformer-XL",
        "seed": 0,
        "prompt": " of a ",
        "sample": "b_c ",
        "own bits": [1.5, 1.25, 1.75],
    }
    made = EMPTY | {"levels": levels, "context lengths": lengths, "samples": [sample]}
    assert "| LSTM | as in training | 1.9000 (one seed) |" in figures_transformer_xl.longer_levels(made)
    assert "| Transformer-XL | as in training | 2.2000 [2.1900, 2.2100] | *not run* |" in figures_transformer_xl.levels(made)
    assert "| LSTM | 96 [64, 128] | 96 [64, 128] | 96 [64, 128] |" in figures_transformer_xl.context_lengths(made)
    text = figures_transformer_xl.sample(made)
    assert (
        "**Prompt, held-out text**: of a\n" in text
        and "seed 0, 1.50 [1.25, 1.75] bits a character" in text
        and "b\\_c\n" in text
    )


def test_what_is_kept_is_what_the_recipe_wrote(tmp_path):
    row = {"text": "words", "bits": {"value": 5.12345678, "low": 5.0, "high": 5.2}, "seeds": 2}
    (tmp_path / "made.json").write_text(json.dumps({"missing": 0, "levels": [row], "rows": [row]}))
    actual = figures_streams.kept(tmp_path / "made.json", "levels")
    assert actual == {"missing": 0, "levels": [{"text": "words", "bits": [5.12346, 5.0, 5.2], "seeds": 2}]}
    assert figures_streams.status(actual).startswith("\nComplete") and "51 models are not" in figures_streams.status(EMPTY)
