"""The explorer's page in gradio: controls, and the views of `esscher.explorer.views` in tabs; `explore_model` serves it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.time_limit import call_within
from esscher.explorer import markup
from esscher.explorer.config import ExploreConfig, ExploreRun, load_gradio
from esscher.explorer.page_app import launch
from esscher.explorer.views import SAMPLERS, CandidatesView, Controls, Explorer
from esscher.hub.folder import CONFIG
from esscher.samplers.ancestral import draw
from esscher.workflow.model import Model, load, load_model

if TYPE_CHECKING:
    from gradio import Blocks

MAX_ROWS = 12  # candidates in the table
EXAMPLES, EXAMPLE_CHARACTERS = 4, 12  # prompts to pick from, and how long they are


def explore_folder(settings: ExploreRun) -> None:
    """Load the model of a folder, tilted by the energy inside if there is one, and serve its page."""
    energy = settings.energy or _inside(settings.folder, "energy")
    explore_model(load_model(replace(settings, energy=energy)), settings)


def explore_model(model: Model, settings: ExploreConfig) -> None:
    """Serve a page to look at a model of text, until Ctrl-C; one without a tokenizer is refused."""
    launch(build_explorer_page(open_explorer(model, settings), timeout=settings.timeout), settings)


def open_explorer(model: Model, settings: ExploreConfig) -> Explorer:
    """The model with its student and example prompts; without prompts, beginnings of the model's own texts."""
    student = settings.student or (None if model.folder is None else _inside(model.folder, "student"))
    tokenizer, prompts = model.tokenizer, settings.prompts  # a model without a tokenizer is refused
    if not prompts and not model.is_translator and not model.prompt_tokens:
        drawn = draw(model.base, empty_prompts(1), EXAMPLES, rng=SeededRng(0).stream("examples"))[0]
        prompts = ("", *dict.fromkeys(text[:EXAMPLE_CHARACTERS] for text in tokenizer.decode(drawn.points())))
    return Explorer(model, None if student is None else load(student, device=str(model.device)), prompts)


def _inside(folder: str | Path, name: str) -> str | None:
    path = Path(folder) / name
    return str(path) if (path / CONFIG).is_file() else None


def build_explorer_page(explorer: Explorer, *, timeout: float = ExploreConfig.timeout) -> "Blocks":
    """The page of one model. One computation runs at a time; candidates appear while drawing, and the page stays responsive."""
    gr, handlers = load_gradio(), ExplorerHandlers(explorer, timeout=timeout)
    source = "Source" if explorer.model.is_translator else "Prompt"
    with gr.Blocks(title="Esscher explorer", analytics_enabled=False) as page:
        tilt = f", tilted by {explorer.model.energy_name}" if explorer.model.is_tilted else ""
        gr.HTML(markup.render("waiting", f"{explorer.model.name}{tilt}"))
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                prompt = gr.Textbox(
                    explorer.examples[0] if explorer.examples else "", label=source, lines=1, max_lines=6, elem_id="prompt"
                )
                prompts = list(explorer.examples)
                examples = gr.Dropdown(prompts, value=None, label="Or pick one", visible=bool(prompts))
                go = gr.Button("Draw", variant="primary", elem_id="draw")
                pool = gr.Slider(16, 1024, 128, step=16, label="Pool: candidates drawn from the base", elem_id="pool")
                temperature = gr.Slider(0.2, 2.0, 1.0, step=0.05, label="Temperature of the base", elem_id="temperature")
                top_k = gr.Slider(0, 100, 0, step=1, label="Top-k of the base (0 keeps every token)", elem_id="top-k")
                sampler = gr.Dropdown(list(SAMPLERS), value="sir", label="Sampler", elem_id="sampler")
                seed = gr.Number(0, label="Seed", precision=0, elem_id="seed")
            with gr.Column(scale=3, min_width=320):
                verdict = gr.HTML(elem_id="verdict")
                with gr.Tab("Candidates"):
                    candidates = gr.HTML(elem_id="candidates")
                with gr.Tab("Next token"):
                    ask_tokens = gr.Button("Compare base and joint", elem_id="ask-tokens")
                    tokens = gr.HTML(elem_id="tokens")
                with gr.Tab("Token by token", visible=explorer.model.is_tilted):
                    rank = gr.Number(1, label="Rank of the candidate", precision=0, minimum=1, elem_id="rank")
                    ask_changes = gr.Button("Colour its tokens", elem_id="ask-changes")
                    changes = gr.HTML(elem_id="changes")
                with gr.Tab("Energies", visible=explorer.model.is_tilted):
                    energies = gr.HTML(elem_id="energies")
                    ask_data = gr.Button("Beside held-out data", elem_id="ask-data")
                    data = gr.HTML(elem_id="data-energies")
                with gr.Tab("Side by side"):
                    sides = gr.HTML(elem_id="sides")
                with gr.Tab("About"):
                    gr.HTML(handlers.about(), elem_id="about")
        view, controls = gr.State(None), [sampler, pool, temperature, top_k, seed]
        drawn = {
            "fn": handlers.draw, "inputs": [prompt, *controls], "outputs": [verdict, candidates, energies, sides, view],
            "concurrency_id": "model", "show_progress": "minimal", "trigger_mode": "always_last",
        }  # fmt: skip
        picked = examples.input(lambda text: text, examples, prompt, queue=False, api_visibility="private")
        picked.then(**drawn, api_name="pick")
        events = {
            "draw": go.click, "enter": prompt.submit, "seed": seed.submit, "sampler": sampler.input, "pool": pool.release,
            "temperature": temperature.release, "top_k": top_k.release, "begin": page.load,
        }  # fmt: skip
        for name, event in events.items():
            event(**drawn, api_name=name)
        shared = {"concurrency_id": "model", "show_progress": "minimal"}
        ask_tokens.click(handlers.tokens, [prompt, *controls], tokens, api_name="tokens", **shared)
        ask_changes.click(handlers.changes, [view, rank, *controls], changes, api_name="changes", **shared)
        ask_data.click(handlers.data, controls, data, api_name="energies", **shared)
    return page


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

    def draw(
        self, prompt: str, sampler: str, pool: float, temperature: float, top_k: float, seed: float
    ) -> Iterator[tuple[str, str, str, str, CandidatesView | None]]:
        """Verdict, candidates, energies, draws by model, and the view itself, each time the pool has grown."""
        end = time.monotonic() + self.timeout
        try:
            outputs = self._outputs(prompt or "", parse_controls(sampler, pool, temperature, top_k, seed))
            while (output := call_within(end - time.monotonic(), lambda: next(outputs, None))) is not None:
                yield output
        except (ValueError, OSError) as error:
            yield markup.render("error", self._message(error)), "", "", "", None

    def _outputs(self, prompt: str, controls: Controls) -> Iterator[tuple[str, str, str, str, CandidatesView | None]]:
        for view in self.explorer.draw(prompt, controls):
            verdict = markup.verdict(view, tilted=self.explorer.model.is_tilted)
            energies, sides = "", ""
            if view.complete:
                energies = markup.pool_energies(view) if self.explorer.model.is_tilted else ""
                sides = markup.render("sides", self.explorer.draws_by_model(view, controls))
            yield verdict, markup.render("candidates", view, MAX_ROWS), energies, sides, view

    def tokens(self, prompt: str, *settings: Any) -> str:
        return self._or_error_html(
            lambda: markup.next_token_table(*self.explorer.next_tokens(prompt or "", parse_controls(*settings)))
        )

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
