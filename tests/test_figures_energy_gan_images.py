"""Blocks on games on images and on entropy gradients: with rows, with one seed, and with none."""

import json

import figures_energy_gan_images as blocks

NUMBER = {"value": 1.236, "low": 1.0, "high": 1.5}
LEVEL = {"images": "MNIST", "model": "GAN", "seeds": 3}


def written(folder, name, **tables):
    (folder / name).write_text(json.dumps({"missing": 2, **tables}))
    return folder


def test_tables_of_images(tmp_path):
    errors = dict.fromkeys((*blocks.PROBES, "mean image"), NUMBER)
    probed = [{**LEVEL, "model": model} | errors for model in ("GAN", "EGAN-Ent-VI")]
    effect = {"images": "MNIST", "layer": "features", "against": "GAN", "less error": NUMBER, "thesis": 0.069}
    effects = [{**effect, "verdict": "reproduced"}, {**effect, "less error": None, "thesis": None, "verdict": "open"}]
    ranked = [LEVEL | dict.fromkeys(blocks.RANKINGS, NUMBER)]
    further = [{"images": "ones", "model": "GAN", "against": "", "highest further than lowest": None, "verdict": "open"}]
    tables = {"probes": probed, "probe effects": effects, "rankings": ranked, "ranking effects": further}
    figures = blocks.image_figures(written(tmp_path, "images.json", pictured=True, rows=[], **tables))
    shown = "1.24 [1, 1.5]"
    assert f"| MNIST | GAN | 3 | {shown} | {shown} | {shown} | 1.26 | {shown} |" in blocks.probes(figures)
    assert f"| MNIST | EGAN-Ent-VI | 3 | {shown} | {shown} | {shown} | - | {shown} |" in blocks.probes(figures)
    assert f"| features | GAN | {shown} | 0.069 | *reproduced* |" in blocks.probe_effects(figures)
    assert "| fewer than two seeds |  | *open* |" in blocks.probe_effects(figures)
    assert blocks.rankings(figures).count(shown) == 6 and "| GAN |  | fewer than two seeds |" in blocks.ranking_effects(figures)
    assert "energy_gan_ones.png" in blocks.ones_picture(figures) and "2 rows are not made" in blocks.status(figures)


def test_tables_of_gradients(tmp_path):
    row = {"process": "pair", "model": "GAN", "estimator": "net", "seeds": 1}
    measures = dict.fromkeys(("cosine with the data's", "length over the cost's", "left of the cost's"), NUMBER)
    tables = {
        "known": [{"estimator": "net", "cosine": NUMBER, "length": NUMBER}],
        "games": [row | measures],
        "effects": [{"claim": "nearer", "process": "pair", "effect": NUMBER, "verdict": "reproduced"}],
    }
    figures = blocks.gradient_figures(written(tmp_path, "gradients.json", pictured=["biased pair"], **tables))
    assert blocks.game_gradients(figures).count("1.24 [1, 1.5]") == 3 and blocks.known_gradients(figures).count("1.24") == 2
    assert "| nearer | pair | 1.24 [1, 1.5] | *reproduced* |" in blocks.gradient_effects(figures)
    assert "(../images/gradients-biased-pair.png)" in blocks.arrows(figures) and "spirals" not in blocks.arrows(figures)


def test_what_was_not_run_says_so():
    empty = {"missing": 0, "pictured": []}
    images = {**empty, "probes": [], "probe effects": [], "rankings": [], "ranking effects": []}
    gradients = {**empty, "known": [], "games": [], "effects": []}
    for figures, of in ((images, blocks.IMAGE_BLOCKS), (gradients, blocks.GRADIENT_BLOCKS)):
        assert {block(figures) for name, block in of.items() if name != "status"} == {blocks.NOT_RUN}
        assert "Complete" in of["status"](figures)
