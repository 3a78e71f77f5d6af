"""The explorer's page: controls, and the views of `esscher.explorer.views` as they come."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from esscher.explorer import markup
from esscher.explorer.serving import load_gradio
from esscher.explorer.views import SAMPLERS, Controls, Explorer, View

if TYPE_CHECKING:
    from gradio import Blocks

MOST = 12  # candidates in the table


def build_page(explorer: Explorer) -> "Blocks":
    """The page of one model; computing goes one at a time, drawing shows what it has, and nothing else waits for it."""
    gr, work = load_gradio(), Handlers(explorer)
    source = "Source" if explorer.model.reads_sources else "Prompt"
    with gr.Blocks(title="Esscher explorer", analytics_enabled=False) as page:
        gr.HTML(work.title())
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                prompt = gr.Textbox(
                    explorer.examples[0] if explorer.examples else "", label=source, lines=1, max_lines=6, elem_id="prompt"
                )
                examples = gr.Dropdown(
                    list(explorer.examples), value=None, label="Or pick one", visible=bool(explorer.examples)
                )
                go = gr.Button("Draw", variant="primary", elem_id="draw")
                pool = gr.Slider(16, 1024, 128, step=16, label="Pool: candidates drawn from the base", elem_id="pool")
                temperature = gr.Slider(0.2, 2.0, 1.0, step=0.05, label="Temperature of the base", elem_id="temperature")
                top_k = gr.Slider(0, 100, 0, step=1, label="Top-k of the base (0 keeps every token)", elem_id="top-k")
                sampler = gr.Dropdown(list(SAMPLERS), value="pool", label="Sampler", elem_id="sampler")
                seed = gr.Number(0, label="Seed", precision=0, elem_id="seed")
            with gr.Column(scale=3, min_width=320):
                verdict = gr.HTML(elem_id="verdict")
                with gr.Tab("Candidates"):
                    candidates = gr.HTML(elem_id="candidates")
                with gr.Tab("Next token"):
                    ask_tokens = gr.Button("Compare base and joint", elem_id="ask-tokens")
                    tokens = gr.HTML(elem_id="tokens")
                with gr.Tab("Token by token", visible=explorer.tilted):
                    rank = gr.Number(1, label="Rank of the candidate", precision=0, minimum=1, elem_id="rank")
                    ask_changes = gr.Button("Colour its tokens", elem_id="ask-changes")
                    changes = gr.HTML(elem_id="changes")
                with gr.Tab("Energies", visible=explorer.tilted):
                    energies = gr.HTML(elem_id="energies")
                    ask_data = gr.Button("Beside held-out data", elem_id="ask-data")
                    data = gr.HTML(elem_id="data-energies")
                with gr.Tab("Side by side"):
                    sides = gr.HTML(elem_id="sides")
                with gr.Tab("About"):
                    gr.HTML(work.about(), elem_id="about")
        view, controls = gr.State(None), [sampler, pool, temperature, top_k, seed]
        drawn = {
            "fn": work.draw, "inputs": [prompt, *controls], "outputs": [verdict, candidates, energies, sides, view],
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
        asked = {"concurrency_id": "model", "show_progress": "minimal"}
        ask_tokens.click(work.tokens, [prompt, *controls], tokens, api_name="tokens", **asked)
        ask_changes.click(work.changes, [view, rank, *controls], changes, api_name="changes", **asked)
        ask_data.click(work.data, controls, data, api_name="energies", **asked)
    return page


class Handlers:
    """What the page calls: a view as HTML, or what went wrong, in words."""

    def __init__(self, explorer: Explorer):
        self.explorer = explorer

    def title(self) -> str:
        energy = self.explorer.energy
        return markup.part("waiting", f"{self.explorer.model.folder}{'' if energy is None else f', tilted by {energy}'}")

    def about(self) -> str:
        model, student = self.explorer.model, self.explorer.student
        space = model.base.space
        return markup.part("about", {
            "base": model.folder,
            "energy": self.explorer.energy or "none: the base alone",
            "kind of energy": type(model.target.energy).__name__ if self.explorer.tilted else "",
            "student": "" if student is None else student.folder,
            "vocabulary": f"{space.vocab_size:,} tokens",
            "longest point": f"{space.max_length:,} tokens",
            "the model": "p(x) is proportional to a(x) exp(-E(x)): a is the base, E the energy of the whole text.",
        })  # fmt: skip

    def draw(
        self, prompt: str, sampler: str, pool: float, temperature: float, top_k: float, seed: float
    ) -> Iterator[tuple[str, str, str, str, View | None]]:
        """Verdict, candidates, energies, draws side by side, and the view itself, each time the pool has grown."""
        try:
            controls = controls_of(sampler, pool, temperature, top_k, seed)
            for view in self.explorer.draw(prompt or "", controls):
                said, table = markup.verdict(view, tilted=self.explorer.tilted), markup.part("candidates", view, MOST)
                if not view.complete:
                    yield said, table, "", "", view
                    continue
                energies = markup.pool_energies(view) if self.explorer.tilted else ""
                yield said, table, energies, markup.part("sides", self.explorer.three(view, controls)), view
        except ValueError as error:
            yield markup.part("error", str(error)), "", "", "", None

    def tokens(self, prompt: str, *settings: Any) -> str:
        return self._told(lambda: markup.tokens(*self.explorer.next_tokens(prompt or "", controls_of(*settings))))

    def changes(self, view: View | None, rank: float, *settings: Any) -> str:
        if view is None:
            return markup.part("error", "There are no candidates yet; draw some first.")
        return self._told(lambda: markup.changes(self.explorer.changes(view, int(rank), controls_of(*settings))))

    def data(self, *settings: Any) -> str:
        return self._told(lambda: markup.data_energies(self.explorer.energies(controls_of(*settings))))

    def _told(self, make: Callable[[], str]) -> str:
        try:
            return make()
        except (ValueError, OSError) as error:
            return markup.part("error", str(error))


def controls_of(sampler: str, pool: float, temperature: float, top_k: float, seed: float) -> Controls:
    """The controls as numbers of the right kind."""
    return Controls(sampler, int(pool), float(temperature), int(top_k), seed=int(seed or 0))
