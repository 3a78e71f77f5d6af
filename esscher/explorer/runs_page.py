"""The tabs of the page that show run folders: *Training*, which refreshes by itself while a run goes on, and *Compare runs*."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.estimate import Estimate
from esscher.explorer import markup
from esscher.explorer.config import load_gradio
from esscher.explorer.runs import MAX_PICKED, TrainingView, compare_runs, training_runs, view_training
from esscher.reports.charts import line_chart
from esscher.reports.document import comparison_charts, history_line, last_samples, loss_chart, validation_chart
from esscher.reports.tables import format_estimate

if TYPE_CHECKING:
    from gradio import Blocks

REFRESH = 3.0  # seconds
FIRST_PICKED = 3  # runs that are compared at first
RESUME = "run its command with --resume to go on from the last checkpoint"
SHARED = {"concurrency_id": "runs", "show_progress": "hidden"}


def build_training_page(folder: Path, runs: Mapping[str, Path]) -> "Blocks":
    """The page of a run that has no model yet."""
    gr = load_gradio()
    with gr.Blocks(title=f"Training {folder.resolve().name} · Esscher", analytics_enabled=False) as page:
        about = f"This run has not saved its model yet. To look at the model afterwards, start esscher explore {folder} again."
        gr.HTML(markup.render("heading", f"Training: {folder.resolve().name}", about), padding=False)
        with gr.Tab("Training"):
            add_training(gr, page, folder)
        with gr.Tab("Compare runs"):
            add_comparison(gr, page, runs)
    return page


def add_training(gr: Any, page: Any, folder: Path) -> None:
    """A view of the runs in a folder, refreshed until none of them goes on."""
    handlers = RunHandlers(folder, {})
    names = list(handlers.training_runs())
    newest = next((name for name, place in handlers.training_runs().items() if view_training(place).running), None)
    which = gr.Radio(names, value=newest or (names[0] if names else None), label="Run", visible=len(names) > 1, elem_id="run")
    shown = gr.HTML(markup.render("waiting", "Reading the history …"), elem_id="training", padding=False)
    timer = gr.Timer(REFRESH, active=True)

    def refresh(name: str | None) -> list[Any]:
        html, goes_on = handlers.training(name)
        return [html, gr.Timer(active=goes_on)]

    page.load(refresh, which, [shown, timer], api_name="watch_first", **SHARED)
    which.input(refresh, which, [shown, timer], api_name="watch_run", **SHARED)
    timer.tick(refresh, which, [shown, timer], api_name="watch", **SHARED)


def add_comparison(gr: Any, page: Any, runs: Mapping[str, Path]) -> None:
    """Run folders to pick, and what they share."""
    handlers, names = RunHandlers(Path(), runs), list(runs)
    picked = gr.CheckboxGroup(names, value=names[:FIRST_PICKED], label="Runs", elem_id="runs")
    compared = gr.HTML(elem_id="comparison", padding=False)
    page.load(handlers.compare, picked, compared, api_name="compare_first", **SHARED)
    picked.input(handlers.compare, picked, compared, api_name="compare_runs", trigger_mode="always_last", **SHARED)


class RunHandlers:
    """The callbacks of these tabs: each returns HTML, or an error message as HTML."""

    def __init__(self, folder: Path, runs: Mapping[str, Path]):
        self.folder, self.runs = folder, runs

    def training_runs(self) -> dict[str, Path]:
        return training_runs(self.folder)

    def training(self, name: str | None) -> tuple[str, bool]:
        """The run of that name, by default the last one that was begun, and whether it goes on."""
        runs = self.training_runs()
        if name is not None and name not in runs:
            return markup.render("error", f"There is no run named {name!r} here."), False
        if not runs:
            return markup.render("waiting", "No update has been written yet; training may still read its data."), True
        place = runs[name] if name is not None else next(reversed(runs.values()))
        try:
            view = view_training(place)
            return render_training(view), not view.finished
        except (ValueError, OSError) as error:
            return markup.render("error", str(error)), False

    def compare(self, names: Sequence[str] | None) -> str:
        picked = [name for name in names or () if name in self.runs][:MAX_PICKED]
        try:
            found = compare_runs({name: self.runs[name] for name in picked})
        except (ValueError, OSError) as error:
            return markup.render("error", str(error))
        notes = list(found.notes)
        if names and len(names) > MAX_PICKED:
            notes.append(f"At most {MAX_PICKED} runs are compared at once; the first ones are shown.")
        curves = validation_chart(found.histories)
        return markup.render("comparison", len(picked), comparison_charts(found.rows), curves, found.differ, notes)


def render_training(view: TrainingView) -> str:
    """Where a run is, its curves, and its last samples."""
    status, tiles = view.status, list[dict[str, str]]()
    steps = view.step if status is None else status.steps
    tiles.append({"name": "step", "value": f"{view.step:,}", "note": f"of {steps:,}" if status is not None else ""})
    if view.running and status is not None:
        tiles.append(
            {"name": "time left", "value": duration(status.seconds_left), "note": f"{duration(status.seconds)} so far"}
        )
        tiles.append({"name": "speed", "value": f"{status.tokens_per_second:,.0f}", "note": "tokens/s"})
    if view.learning_rate is not None:
        tiles.append({"name": "learning rate", "value": f"{view.learning_rate:.2g}"})
    if (best := _best_validation(view)) is not None:
        tiles.append(best)
    losses = [entry["loss"] for entry in view.history if isinstance(entry.get("loss"), int | float)]
    if losses:
        tiles.append({"name": "training loss", "value": f"{losses[-1]:.4g}", "note": "mean of the last updates"})
    tone, title, sentence = _state(view)
    share = 100.0 * view.step / steps if view.running and steps else None
    rate = history_line(view.history, "learning_rate", "learning rate", "base")
    changes = rate is not None and len(set(rate.y)) > 1
    rate_chart = line_chart([rate], x="step", y="", from_zero=True) if rate is not None and changes else None
    step, samples = last_samples(view.history)
    return markup.render(
        "training", view, tone, title, sentence, tiles, share, loss_chart(view.history), rate_chart, step, samples
    )


def _best_validation(view: TrainingView) -> dict[str, str] | None:
    evaluations = [entry for entry in view.history if isinstance(entry.get("validation"), int | float)]
    if not evaluations:
        return None
    best = min(evaluations, key=lambda entry: entry["validation"])
    low, high = (float(best.get(f"validation_{end}", best["validation"])) for end in ("low", "high"))
    estimate = Estimate(float(best["validation"]), low, high, 0.95, len(evaluations), "held-out data")
    value, _, interval = format_estimate(estimate).partition(" ")
    note = f"{interval} at step {best['step']:,}".strip()
    return {"name": "best validation loss", "value": value, "note": note, "title": "with its 95 % interval"}


def _state(view: TrainingView) -> tuple[str, str, str]:
    """Tone, title and sentence on whether the run goes on."""
    if view.finished:
        return "good", "Finished.", f"The run ended after {view.step:,} updates."
    if view.running and view.status is not None:
        return "busy", "Training.", f"{duration(view.status.seconds_left)} left. This view refreshes by itself."
    if view.status is not None:
        silent = duration(view.now - view.status.time)
        return (
            "more",
            "No news.",
            f"The last update was written {silent} ago. If the process is gone, run its command with --resume.",
        )
    return (
        "more",
        "Not running.",
        "The run stopped before its end; run its command with --resume to go on from the last checkpoint.",
    )


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
