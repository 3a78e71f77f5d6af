"""Tables of energies that learnt to their plateau."""

import json

import figures_residual
from figures_residual import (
    CONVERGED,
    analysis_cell,
    converged_base,
    converged_claims,
    converged_figures,
    plateau_claims,
    plateau_figures,
    plateau_gains,
    plateau_losses,
    plateau_status,
    verdict_of,
)


def write_row(folder, model, seed, gain, steps):
    run = folder / "tinystories" / f"{model}-seed{seed}"
    run.mkdir(parents=True)
    estimate = {"value": gain, "low": gain - 0.01, "high": gain + 0.01}
    row = {"text": "t", "model": model, "seed": seed, "parameters": 9, "per token, this test set": estimate, "gain": estimate,
           "gain per token": estimate, "steps": steps[0]}  # fmt: skip
    if model != "BALM":
        row["log Z"] = estimate
    (run / "row.json").write_text(json.dumps(row))
    lines = [{"step": step, "validation": 1.3 + seed / 100} for step in steps]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_rows_are_read_where_each_is_kept(tmp_path):
    for seed in range(3):
        write_row(tmp_path, "UniT", seed, 0.05 + seed / 1000, [100, 200])
        write_row(tmp_path, "BALM", seed, 0.01 + seed / 1000, [500])
    figures = plateau_figures(tmp_path)
    assert figures["missing"] == 13 and "13 rows are not made" in plateau_status(figures)
    gains = plateau_gains(figures)
    assert "| UniT | 9 | 5.1 [4.9, 5.3] | 5.1 [4.9, 5.3] |" in gains and "200 (100), 200 (100), 200 (100)" in gains
    assert "| BALM | 9 | 1.1 [0.9, 1.3] | 1.1 [0.9, 1.3] | - | 500 (the most) (500)" in gains
    assert "| BiT |  | *not run* |" in gains
    assert "| 100 | 1.3100 (3) |" in plateau_losses(figures)
    assert "| UniT gains more than BALM | 4.0 [4.0, 4.0] | *reproduced* |" in plateau_claims(figures)
    assert "| BiT gains more than UniT | *not run* | *open*: fewer than three seeds |" in plateau_claims(figures)


def test_on_a_base_that_was_trained_on_first_gains_are_judged_by_themselves_too(tmp_path):
    for seed in range(3):
        write_row(tmp_path, "UniT", seed, 0.02 + seed / 1000, [100])
        write_row(tmp_path, "RALM", seed, 0.001 + seed / 1000, [100])
    training = tmp_path / "tinystories" / "base-training"
    training.mkdir()
    entries = [{"step": 100 * number, "validation": loss} for number, loss in enumerate((1.4, 1.3, 1.35), 1)]
    (training / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    figures = converged_figures(tmp_path)
    assert figures["missing"] == 10
    claims = converged_claims(figures)
    assert "| UniT, an energy of the base's size, gains | 2.1 [1.9, 2.3] | 7.2 | *reproduced* |" in claims
    assert "(less than 1 %) | 0.2 [-0.0, 0.4] | 0.0 | *open*: so with every seed on these" in claims  # rows reach above 1 %
    assert "| BALM, a larger base, gains | *not run* |" in claims
    assert "1.4000 nats a token after 100 updates, 1.3000 at best, after 200; it was stopped after 300" in converged_base(
        figures
    )
    assert "trained on" not in plateau_gains(figures, CONVERGED)


def test_a_verdict_of_differences():
    assert verdict_of([1.0, 1.1, 0.9]) == "*reproduced*" and verdict_of([-1.0, -1.1, -0.9]).startswith("*refuted")
    assert verdict_of([1.0, -1.0, 0.1]) == "*open*" and "fewer" in verdict_of([1.0, 1.1])


def test_what_is_not_run_names_no_figure():
    assert plateau_status({"missing": 16, "rows": [], "losses": []}) == "\n*Not run yet.*\n"


def test_cells_of_analyses():
    assert analysis_cell(0.9375, "ours: holds the reference") == "94 %" and analysis_cell(None, "distance to text") == "-"
    assert analysis_cell([3.26, 3.25, 3.27], "ours") == "3.2600 [3.2500, 3.2700]" and analysis_cell(16, "draws") == "16"


def test_analyses_have_a_verdict_by_their_intervals():
    step = {"step": 20, "sequences": 12, "saved": [0.02, 0.01, 0.1]}
    assert "0.020 [0.010, 0.100] nats at step 20, 12 sequences" in figures_residual.last_step({"steps": [step]})
    for saved, word in (([0.02, 0.01, 0.1], "reproduced"), ([0.02, -0.1, 0.1], "open"), ([-0.2, -0.3, -0.1], "refuted under")):
        assert f"*{word}" in figures_residual.last_step_verdict({"steps": [{**step, "saved": saved}]})
    text = {"energies of": "data", "distance to text": None}
    for joint, word in (([0.2, 0.1, 0.3], "reproduced"), ([0.4, 0.3, 0.5], "open"), ([0.8, 0.7, 0.9], "refuted under")):
        rows = [
            text,
            *({"energies of": name, "distance to text": d} for name, d in (("base", [0.5, 0.4, 0.6]), ("joint", joint))),
        ]
        assert f"*{word}" in figures_residual.energy_verdict({"energies": rows})
        assert "draws of the base 0.50 [0.40, 0.60], draws" in figures_residual.energy_distances({"energies": rows})
