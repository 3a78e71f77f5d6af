"""What the explorer shows is what samplers and estimators give, exactly where the truth is known."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_model import FEATURES, LETTERS, explorer, last

from esscher.core.space import prompts_of
from esscher.core.target import flat
from esscher.energies.features import LogLinear, Sum, feature_values, text_feature
from esscher.exact.enumeration import enumerate_points, tabulate
from esscher.explorer import markup, views
from esscher.explorer.page import more_candidates
from esscher.explorer.runs import TrainingView
from esscher.explorer.runs_page import render_training
from esscher.explorer.views import FEWEST_CANDIDATES, FIRST_CANDIDATES, MAX_POOL, Controls, ShownText
from esscher.reports.tables import token_name, token_texts


def test_candidates_are_the_pool_s_and_their_shares_sum_to_one():
    shown = explorer()
    view = last(shown.draw("a", Controls(sampler="sir", pool=100)))
    assert sum(row.share for row in view.rows) == pytest.approx(1)
    assert sum(row.times for row in view.rows) == 100 and sum(row.chosen for row in view.rows) == Controls().draws
    assert [row.share for row in view.rows] == sorted((row.share for row in view.rows), reverse=True)
    target = shown.model.target
    weight = {row.point: math.exp(-row.energy) for row in view.rows}
    total = sum(row.times * weight[row.point] for row in view.rows)
    for row, parts in zip(view.rows, view.parts, strict=True):
        assert row.share == pytest.approx(row.times * weight[row.point] / total)
        assert sum(parts.values()) == pytest.approx(-row.energy)
    assert view.pool["log_z"].value == pytest.approx(math.log(total / 100))
    assert view.pool["log_z"].covers(float(tabulate(target, view.prompt).log_z))


def test_the_same_seed_gives_the_same_candidates_and_a_larger_pool_begins_with_a_smaller_one():
    shown = explorer()
    small, again = (last(shown.draw("", Controls("sir", pool=64, seed=3))) for _ in range(2))
    assert small.rows == again.rows and torch.equal(small.selection.selected, again.selection.selected)
    views = list(shown.draw("", Controls("sir", pool=128, seed=3)))
    assert [len(view.selection.candidates.x) for view in views] == [FIRST_CANDIDATES, 32, 64, 128]
    assert [view.complete for view in views] == [False, False, False, True]
    assert views[2].rows == small.rows
    assert last(shown.draw("", Controls("sir", pool=64, seed=4))).rows != small.rows


@pytest.mark.parametrize("sampler", ["adaptive-sir", "particles"])
def test_other_samplers_give_shares_too(sampler):
    view = last(explorer().draw("b", Controls(sampler=sampler, pool=64)))
    assert view.complete and sum(row.share for row in view.rows) == pytest.approx(1)
    assert (view.pool["log_z"] is None) == (sampler == "particles")


def test_by_default_drawing_goes_on_until_the_verdict_is_good():
    actual = list(explorer(LogLinear(FEATURES[:1], torch.tensor([1.0]))).draw("", Controls()))
    assert [view.candidates for view in actual] == [16, 32, 64, FEWEST_CANDIDATES]
    assert actual[-1].stopped == "good" and [view.complete for view in actual] == [False, False, False, True]
    assert "These draws suffice." in markup.verdict(actual[-1], tilted=True) and markup.advised(actual[-1], tilted=True) is None
    assert "Drawing" in markup.verdict(actual[0], tilted=True) and markup.advised(actual[0], tilted=True) is None


def test_drawing_ends_at_a_limit_or_after_a_time_and_more_candidates_are_offered(monkeypatch):
    """Weights of 40 nats for each letter have no trustworthy mean at any size."""
    shown = explorer(LogLinear(FEATURES, torch.tensor([0.0, 40.0])))
    *_, stuck = shown.draw("", Controls(pool=256))
    assert (stuck.candidates, stuck.stopped) == (256, "limit") and stuck.pool["verdict"] != "good"
    assert "limit of 256 candidates" in markup.verdict(stuck, tilted=True)
    assert markup.advised(stuck, tilted=True) == "Draw 4\N{MULTIPLICATION SIGN} more candidates"
    assert more_candidates(stuck, "until-good", 256, 1.0, 0, 7) == ("sir", 1024, 1.0, 0, 7)
    assert more_candidates(None, "sir", 16, 1.0, 0, 7)[1] == 16
    monkeypatch.setattr(views, "SECONDS", 0.0)
    (first,) = shown.draw("", Controls(pool=256))
    assert first.complete and first.stopped == "time" and first.candidates == FIRST_CANDIDATES
    particles = last(shown.draw("", Controls("particles", pool=64)))
    assert markup.advised(particles, tilted=True) == "Draw independent candidates"
    assert more_candidates(particles, "particles", 64, 1.0, 0, 0)[:2] == ("sir", 64)
    assert more_candidates(stuck, "sir", MAX_POOL, 1.0, 0, 0)[1] <= MAX_POOL


def test_means_of_features_cover_the_truth_under_both_models():
    shown = explorer()
    view = last(shown.draw("a", Controls("sir", pool=2_000)))
    x = enumerate_points(shown.model.base.space, view.prompt)
    values = feature_values(FEATURES, x).double()
    laws = {
        "base": shown.model.base.log_probs(x).detach().double().sum(-1).softmax(-1),
        "tilted": shown.model.target.log_score(x).detach().double().softmax(-1),
    }
    actual = {mean.name: mean for mean in shown.feature_means(view)}
    assert set(actual) == {feature.name for feature in FEATURES}
    for column, feature in enumerate(FEATURES):
        for name, law in laws.items():
            assert getattr(actual[feature.name], name).covers(float(law @ values[:, column])), (feature.name, name)
    assert shown.feature_means(last(shown.draw("a", Controls("particles", pool=16)))) == []


def test_texts_of_all_models_are_on_one_scale():
    shown = explorer()
    view = last(shown.draw("", Controls(draws=3)))
    columns = shown.texts(view, Controls(draws=3))
    assert list(columns) == ["base", "tilted"] and {len(rows) for rows in columns.values()} == {3}
    assert all(sum(row.parts.values()) == pytest.approx(-row.energy) for rows in columns.values() for row in rows)
    rows = {
        "base": [ShownText("x", 0.0, -2.0, {})],
        "tilted": [ShownText("y", 0.0, 1.0, {}), ShownText("z", 0.0, math.inf, {})],
    }
    html = markup.texts(rows, view, [], tilted=True)
    assert "left: 33.3%; width: 66.7%" in html and "left: 0.0%; width: 33.3%" in html  # from -1 to 2, around 0


def test_next_tokens_have_one_scale_of_bars():
    names, table = explorer().next_tokens("a", Controls(), draws=100)
    html = markup.next_token_table(names, table)
    widths = [float(width) for width in re.findall(r'class="fill" style="width: ([0-9.]+)%', html)]
    values = [value for row in table.rows for value in (row.base.value, row.joint.value)]
    ratios = [width / value for width, value in zip(widths, values, strict=True) if value > 0.05]
    assert len(widths) == 2 * len(names) and max(ratios) == pytest.approx(min(ratios), rel=0.02)


def test_top_k_and_temperature_change_the_base():
    shown = explorer()
    (only,) = last(shown.draw("", Controls(top_k=1))).rows
    assert only.share == pytest.approx(1) and only.log_base == pytest.approx(0)
    cold, warm = (last(shown.draw("", Controls(temperature=t, pool=128))) for t in (0.2, 2.0))
    assert len(cold.rows) < len(warm.rows)


def test_next_tokens_cover_the_truth_and_sum_to_one():
    shown = explorer()
    names, actual = shown.next_tokens("a", Controls(), draws=400)
    assert sum(row.joint.value for row in actual.rows) == pytest.approx(1)
    x = enumerate_points(shown.model.base.space, prompts_of(shown.model.data.encode_prompts(["a"])))
    score = shown.model.target.log_score(x).detach().double().softmax(-1)
    first = x.tokens[:, 1]
    for name, row in zip(names, actual.rows, strict=True):
        assert name == token_name(row.token, [1], LETTERS)
        assert row.joint.covers(float(score[first == row.token].sum())), name
    plain = explorer(flat).next_tokens("a", Controls())[1]
    assert sum(row.base.value for row in plain.rows) == pytest.approx(1)
    assert all(row.base == row.joint for row in plain.rows)


def test_changes_along_a_text_add_up_and_are_near_the_truth():
    shown = explorer()
    view = last(shown.draw("", Controls(pool=64)))
    rank = max(range(len(view.rows)), key=lambda place: len(view.rows[place].point)) + 1
    actual = shown.changes(view, rank, Controls(), draws=2000)
    point, space, target = view.rows[rank - 1].point, shown.model.base.space, shown.model.target
    assert [item.text for item in actual] == token_texts(point, [], LETTERS)
    x = enumerate_points(space, view.prompt)
    score, base = target.log_score(x).detach().double(), target.base.log_probs(x).detach().double().sum(-1)
    inside = torch.ones(len(x), dtype=torch.bool)
    for place, (token, item) in enumerate(zip(point, actual, strict=True)):
        here = inside & (x.tokens[:, place] == token) & (x.lengths > place)
        rise = torch.logsumexp(score[here], 0) - torch.logsumexp(score[inside], 0)
        plain = torch.logsumexp(base[here], 0) - torch.logsumexp(base[inside], 0)
        assert item.base.value == pytest.approx(float(plain), abs=1e-6)
        assert item.change.value == pytest.approx(float(rise - plain), abs=0.1)
        inside = here
    log_z = torch.logsumexp(score, 0)
    total = sum(item.change.value for item in actual)
    assert total == pytest.approx(-view.rows[rank - 1].energy - float(log_z), abs=0.1)
    with pytest.raises(ValueError, match="no rank 99"):
        shown.changes(view, 99, Controls())


def test_parts_of_a_sum_are_shown():
    energy = Sum({"features": LogLinear(FEATURES, torch.tensor([1.0, 2.0])), "flat": flat})
    view = last(explorer(energy).draw("", Controls(pool=16)))
    assert all(sum(parts.values()) == pytest.approx(-row.energy) for row, parts in zip(view.rows, view.parts, strict=True))


def test_wrong_controls_are_refused():
    with pytest.raises(ValueError, match="choose from: until-good, sir, adaptive-sir, particles"):
        Controls(sampler="magic")
    with pytest.raises(ValueError, match="Nothing was drawn"):
        Controls(temperature=0.0)


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>${3+4}{{value}}@children"


def test_no_text_of_a_model_or_a_person_is_markup():
    loud = text_feature(EVIL, lambda points: [EVIL] * len(points), lambda text: 1.0)
    shown = explorer(LogLinear([loud], torch.tensor([1.0])))
    view = last(shown.draw("ab", Controls(pool=16)))
    change = shown.changes(view, 1, Controls(), draws=4)
    names, actual = shown.next_tokens("ab", Controls(), draws=16)
    output = {"base": [ShownText(EVIL, 0.0, 1.0, {EVIL: 1.0})], "tilted": [ShownText(EVIL, 0.0, -1.0, {})]}
    entry = {"step": 1, "loss": 1.0, "validation": 1.0, "samples": [EVIL]}
    run = TrainingView(Path(EVIL), [entry], None, finished=False)
    pages = [
        markup.render("candidates", view, 12),
        markup.token_change_table([type(change[0])(EVIL, change[0].base, change[0].change, None)]),
        markup.next_token_table([EVIL] * len(names), actual),
        markup.texts(output, replace(view, text=EVIL), shown.feature_means(view), tilted=True),
        markup.verdict(replace(view, pool={**view.pool, "verdict": "doubtful", "advice": EVIL}), tilted=True),
        render_training(run),
        markup.render("comparison", 2, [], None, [{"setting": EVIL}], [EVIL]),
        markup.render("error", EVIL),
        markup.render("about", {EVIL: EVIL}),
    ]
    for page in pages:
        assert "&lt;script&gt;" in page and "<script" not in page and "<img" not in page
        assert not set("{}$@") & set(page)
