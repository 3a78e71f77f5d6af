"""The explorer's page in gradio: controls, and the views of `esscher.explorer.views` in tabs; `explore_model` serves it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.time_limit import call_within
from esscher.energies.features import LogLinear
from esscher.explorer import markup
from esscher.explorer.config import ExploreConfig, ExploreRun, load_gradio
from esscher.explorer.page_app import launch
from esscher.explorer.runs import find_runs, is_unfinished, training_runs
from esscher.explorer.runs_page import add_comparison, add_training, build_training_page
from esscher.explorer.views import MAX_POOL, MORE, UNTIL_GOOD, CandidatesView, Controls, Explorer
from esscher.hub.folder import CONFIG
from esscher.samplers.ancestral import draw
from esscher.workflow.model import Model, load, load_model

if TYPE_CHECKING:
    from gradio import Blocks

MAX_ROWS = 12  # candidates in the table
TOKEN_DRAWS = 64  # continuations of each next token
EXAMPLES, EXAMPLE_DRAWS = 6, 16  # prompts to pick from, and texts that they are taken from
EXAMPLE_WORDS, EXAMPLE_CHARACTERS = 2, 24  # how long they are at most
HOW = {
    UNTIL_GOOD: "until the verdict is good",
    "sir": "a fixed number of candidates",
    "adaptive-sir": "until no candidate dominates",
    "particles": "particles (dependent)",
}


def explore_folder(settings: ExploreRun) -> None:
    """Load the model of a folder, tilted by the energy inside if there is one, and serve its page; a run that has not saved its
    model yet is shown while it trains."""
    folder = Path(settings.folder)
    if is_unfinished(folder):
        launch(build_training_page(folder, find_runs(folder, settings.runs)), settings)
        return
    energy = settings.energy or _inside(settings.folder, "energy")
    explore_model(load_model(replace(settings, energy=energy)), settings)


def explore_model(model: Model, settings: ExploreConfig) -> None:
    """Serve a page to look at a model of text, until Ctrl-C; one without a tokenizer is refused."""
    here = model.folder is not None and Path(model.folder).is_dir()
    runs = find_runs(Path(str(model.folder)), settings.runs) if here or settings.runs else {}
    launch(build_explorer_page(open_explorer(model, settings), timeout=settings.timeout, runs=runs), settings)


def open_explorer(model: Model, settings: ExploreConfig) -> Explorer:
    """The model with its student and example prompts; without prompts, beginnings of the model's own texts."""
    student = settings.student or (None if model.folder is None else _inside(model.folder, "student"))
    tokenizer, prompts = model.tokenizer, settings.prompts  # a model without a tokenizer is refused
    if not prompts and not model.is_translator and not model.prompt_tokens:
        drawn = draw(model.base, empty_prompts(1), EXAMPLE_DRAWS, rng=SeededRng(0).stream("examples"))[0]
        prompts = ("", *_beginnings(tokenizer.decode(drawn.points())))
    return Explorer(model, None if student is None else load(student, device=str(model.device)), prompts)


def _beginnings(texts: Sequence[str]) -> list[str]:
    """The first words of each text; those without signs, as far as there are any."""
    words = [" ".join(text.split()[:EXAMPLE_WORDS])[:EXAMPLE_CHARACTERS] for text in texts]
    different = [text for text in dict.fromkeys(words) if text]
    return ([text for text in different if text.replace(" ", "").isalnum()] or different)[:EXAMPLES]


def _inside(folder: str | Path, name: str) -> str | None:
    path = Path(folder) / name
    return str(path) if (path / CONFIG).is_file() else None


def build_explorer_page(
    explorer: Explorer, *, timeout: float = ExploreConfig.timeout, runs: Mapping[str, Path] | None = None
) -> "Blocks":
    """The page of one model, which draws when it opens; `runs` are folders to compare. One computation runs at a time; texts
    appear while candidates are drawn, and the page stays responsive."""
    gr, handlers, model = load_gradio(), ExplorerHandlers(explorer, timeout=timeout), explorer.model
    title, about = heading(model)
    with gr.Blocks(title=f"{title} · Esscher", analytics_enabled=False) as page:
        gr.HTML(markup.render("heading", title, about), elem_id="heading", padding=False)
        with gr.Row(elem_classes="ask"):
            what = "source to translate" if model.is_translator else "beginning of a text"
            prompt = gr.Textbox(
                explorer.examples[0] if explorer.examples else "", label="Prompt", lines=1, max_lines=6, elem_id="prompt",
                placeholder=f"Type the {what}, or leave this empty", container=False, scale=6, min_width=240,
            )  # fmt: skip
            go = gr.Button("Draw", variant="primary", elem_id="draw", scale=1, min_width=100)
        with gr.Row(elem_classes="chips", visible=bool(explorer.examples)):
            chips = [gr.Button(_chip(text), size="sm", elem_classes="chip") for text in explorer.examples]
        with gr.Accordion("Settings of drawing", open=False, elem_id="settings"), gr.Row():
            sampler = gr.Dropdown(
                [(name, value) for value, name in HOW.items()], value=UNTIL_GOOD, label="Draw", elem_id="sampler"
            )
            pool = gr.Slider(16, MAX_POOL, Controls.pool, step=16, label="Candidates, at most", elem_id="pool")
            temperature = gr.Slider(0.2, 2.0, 1.0, step=0.05, label="Temperature of the base", elem_id="temperature")
            top_k = gr.Slider(0, 100, 0, step=1, label="Top-k of the base (0 keeps every token)", elem_id="top-k")
            seed = gr.Number(0, label="Seed", precision=0, elem_id="seed")
        with gr.Row(elem_classes="said"):
            verdict = gr.HTML(markup.render("waiting", "Drawing the first candidates …"), elem_id="verdict", padding=False)
            more = gr.Button("Draw more", visible=False, elem_id="more", variant="primary", scale=0, min_width=210)
        with gr.Tab("Texts"):
            texts = gr.HTML(elem_id="texts", padding=False)
        with gr.Tab("Candidates", visible=model.is_tilted):
            candidates = gr.HTML(elem_id="candidates", padding=False)
        with gr.Tab("Next token") as tokens_tab:
            tokens = gr.HTML(markup.render("waiting", "Estimating the next tokens …"), elem_id="tokens", padding=False)
            with gr.Row():
                ask_tokens = gr.Button(f"Use {MORE}{markup.TIMES} more draws", elem_id="ask-tokens", scale=0, min_width=210)
        with gr.Tab("Token by token", visible=model.is_tilted) as changes_tab:
            changes = gr.HTML(markup.render("waiting", "Estimating the changes …"), elem_id="changes", padding=False)
            with gr.Row():
                rank = gr.Number(
                    1, label="Rank of the candidate", precision=0, minimum=1, elem_id="rank", scale=0, min_width=180
                )
                ask_changes = gr.Button("Colour its tokens", elem_id="ask-changes", scale=0, min_width=180)
        with gr.Tab("Energies", visible=model.is_tilted):
            energies = gr.HTML(elem_id="energies", padding=False)
            with gr.Row():
                ask_data = gr.Button("Beside held-out data", elem_id="ask-data", scale=0, min_width=210)
            data = gr.HTML(elem_id="data-energies", padding=False)
        with gr.Tab("Compare runs", visible=bool(runs)):
            add_comparison(gr, page, runs or {})
        with gr.Tab("Training", visible=has_training(model)):
            if has_training(model):
                add_training(gr, page, Path(str(model.folder)))
        with gr.Tab("About"):
            gr.HTML(handlers.about(), elem_id="about", padding=False)
        view, controls = gr.State(None), [sampler, pool, temperature, top_k, seed]
        outputs = [verdict, more, texts, candidates, energies, view]
        shared = {"concurrency_id": "model", "show_progress": "hidden"}
        drawing = {**shared, "trigger_mode": "always_last"}

        def update(drawn: Drawn) -> list[Any]:
            button = gr.update(visible=drawn.advised is not None, value=drawn.advised or "")
            return [drawn.verdict, button, drawn.texts, drawn.candidates, drawn.energies, drawn.view]

        def draw(*values: Any) -> Iterator[list[Any]]:
            yield from map(update, handlers.draw(*values))

        def draw_more(current: CandidatesView | None, text: str, *settings: Any) -> Iterator[list[Any]]:
            settings = more_candidates(current, *settings)
            yield from ([*settings[:2], *update(drawn)] for drawn in handlers.draw(text, *settings))

        def draw_example(text: str) -> Callable[..., Iterator[list[Any]]]:
            def draw_it(*settings: Any) -> Iterator[list[Any]]:
                yield from ([text, *update(drawn)] for drawn in handlers.draw(text, *settings))

            return draw_it

        events = {
            "draw": go.click, "enter": prompt.submit, "seed": seed.submit, "sampler": sampler.input, "pool": pool.release,
            "temperature": temperature.release, "top_k": top_k.release, "begin": page.load,
        }  # fmt: skip
        for name, event in events.items():
            event(draw, [prompt, *controls], outputs, api_name=name, **drawing)
        for number, (chip, text) in enumerate(zip(chips, explorer.examples, strict=True), 1):
            chip.click(draw_example(text), controls, [prompt, *outputs], api_name=f"example_{number}", **drawing)
        more.click(draw_more, [view, prompt, *controls], [sampler, pool, *outputs], api_name="more", **drawing)
        tokens_tab.select(handlers.tokens, [prompt, *controls], tokens, api_name="tokens", **drawing)
        ask_tokens.click(handlers.more_tokens, [prompt, *controls], tokens, api_name="more_tokens", **shared)
        ask_changes.click(handlers.changes, [view, rank, *controls], changes, api_name="changes", **shared)
        changes_tab.select(handlers.changes, [view, rank, *controls], changes, api_name="changes_tab", **drawing)
        ask_data.click(handlers.data, controls, data, api_name="energies", **shared)
    return page


def heading(model: Model) -> tuple[str, str]:
    """What the page is called, and what it shows."""
    name = "A model" if model.folder is None else Path(model.folder).resolve().name
    if not model.is_tilted:
        return f"Explore {name}", "Texts of the base, which is not tilted. Give --energy to see what an energy changes."
    energy = model.target.energy
    about = f"Texts of the base a(x) beside texts of the tilted model p(x) ∝ a(x)·exp({markup.MINUS}E(x))."
    if isinstance(energy, LogLinear):
        weights = zip((feature.name for feature in energy.features), energy.weights.tolist(), strict=True)
        parts = [f"{feature} ({weight:+.3g})" for feature, weight in weights]
        rest = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
        about += f" {markup.MINUS}E(x) is the sum, in nats, of {', '.join(parts[:4])}{rest}."
    else:
        about += f" E is {model.energy_name}."
    return f"Explore {name}: what the tilt changes", about


def has_training(model: Model) -> bool:
    """Whether the model's folder holds the history of a run."""
    return model.folder is not None and Path(model.folder).is_dir() and bool(training_runs(Path(model.folder)))


def _chip(text: str) -> str:
    return text if text.strip() else "no prompt"


def more_candidates(
    view: CandidatesView | None, sampler: str, pool: float, temperature: float, top_k: float, seed: float
) -> tuple[str, float, float, float, float]:
    """The settings that the verdict advises: independent candidates, four times as many as there are."""
    if view is None:
        return sampler, pool, temperature, top_k, seed
    if not view.selection.candidates.independent:
        return "sir", pool, temperature, top_k, seed
    return "sir", min(MAX_POOL, MORE * view.candidates), temperature, top_k, seed


@dataclass(frozen=True)
class Drawn:
    """What the page shows after a draw: four views, the words of the advised button, and the view that they are of."""

    verdict: str
    texts: str = ""
    candidates: str = ""
    energies: str = ""
    advised: str | None = None
    view: CandidatesView | None = None


class ExplorerHandlers:
    """The callbacks of the page: each returns a view as HTML, or an error message as HTML, within `timeout` seconds."""

    def __init__(self, explorer: Explorer, *, timeout: float = ExploreConfig.timeout):
        self.explorer, self.timeout = explorer, timeout

    def about(self) -> str:
        model, student = self.explorer.model, self.explorer.student
        space = model.base.space
        return markup.render("about", {
            "base": model.name,
            "energy": model.energy_name or "none (base only)",
            "kind of energy": type(model.target.energy).__name__ if self.explorer.model.is_tilted else "",
            "student": "" if student is None else student.name,
            "vocabulary": f"{space.vocab_size:,} tokens",
            "longest sequence": f"{space.max_length:,} tokens",
            "the model": "p(x) is proportional to a(x) exp(-E(x)), where a is the base and E the energy of the whole sequence.",
        })  # fmt: skip

    def draw(self, prompt: str, sampler: str, pool: float, temperature: float, top_k: float, seed: float) -> Iterator[Drawn]:
        """The views, each time the pool has grown."""
        end = time.monotonic() + self.timeout
        try:
            outputs = self._outputs(prompt or "", parse_controls(sampler, pool, temperature, top_k, seed))
            while (output := call_within(end - time.monotonic(), lambda: next(outputs, None))) is not None:
                yield output
        except (ValueError, OSError) as error:
            yield Drawn(markup.render("error", self._message(error)))

    def _outputs(self, prompt: str, controls: Controls) -> Iterator[Drawn]:
        tilted = self.explorer.model.is_tilted
        for view in self.explorer.draw(prompt, controls):
            means = self.explorer.feature_means(view) if tilted else []
            yield Drawn(
                markup.verdict(view, tilted=tilted),
                markup.texts(self.explorer.texts(view, controls), view, means, tilted=tilted),
                markup.render("candidates", view, MAX_ROWS),
                markup.pool_energies(view) if tilted and view.complete else "",
                markup.advised(view, tilted=tilted),
                view,
            )

    def tokens(self, prompt: str, *settings: Any) -> str:
        return self._tokens(prompt, TOKEN_DRAWS, *settings)

    def more_tokens(self, prompt: str, *settings: Any) -> str:
        return self._tokens(prompt, MORE * TOKEN_DRAWS, *settings)

    def _tokens(self, prompt: str, draws: int, *settings: Any) -> str:
        def table() -> str:
            names, rows = self.explorer.next_tokens(prompt or "", parse_controls(*settings), draws=draws)
            return markup.next_token_table(names, rows, tilted=self.explorer.model.is_tilted)

        return self._or_error_html(table)

    def changes(self, view: CandidatesView | None, rank: float, *settings: Any) -> str:
        if view is None:
            return markup.render("error", "There are no candidates yet; draw some first.")
        return self._or_error_html(
            lambda: markup.token_change_table(self.explorer.changes(view, int(rank), parse_controls(*settings)))
        )

    def data(self, *settings: Any) -> str:
        return self._or_error_html(lambda: markup.data_energies(self.explorer.energies(parse_controls(*settings))))

    def _or_error_html(self, make: Callable[[], str]) -> str:
        try:
            return call_within(self.timeout, make)
        except (ValueError, OverflowError, OSError) as error:
            return markup.render("error", self._message(error))

    def _message(self, error: Exception) -> str:
        late = f"This took longer than {self.timeout:g} s and was given up; take a smaller pool, or a longer --timeout."
        return late if isinstance(error, TimeoutError) else str(error)


def parse_controls(sampler: str, pool: float, temperature: float, top_k: float, seed: float) -> Controls:
    """The values of the sliders and fields, converted to `Controls`."""
    try:
        return Controls(sampler, int(pool), float(temperature), int(top_k), seed=int(seed or 0))
    except (TypeError, OverflowError) as error:  # what the page itself never sends
        raise ValueError(f"A control has no number: {error}. Nothing was drawn.") from error
