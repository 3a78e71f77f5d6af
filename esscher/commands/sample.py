"""esscher sample: draw from a model, tilted or not, and show what was chosen from what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import BaseFolder, Cutting, EnergyFolder, Json, Quiet, Seed, Sharded
from esscher.commands.output import Answer, show, write_lines
from esscher.commands.sample_images import Picturing, image_answer
from esscher.cut import Cut
from esscher.launch import first_process, rank, started

if TYPE_CHECKING:
    from esscher.draws import Sampler
    from esscher.randomness import Rng
    from esscher.samplers.choice import SamplerSettings
    from esscher.target import Tilted
    from esscher.verbs.models import Model

app = App(
    name="sample",
    help_epilogue="Example: esscher sample runs/first --energy runs/energy --prompt 'Return the' --draws 4 --top-k 50",
)


@dataclass(frozen=True)
class Drawing:
    """How to draw."""

    draws: Annotated[int, Parameter(help="Draws for each prompt.")] = 4
    sampler: Annotated[
        str | None,
        Parameter(
            help="ancestral, importance, pool, adaptive-pool, rejection, quasi-rejection, metropolis, particles or "
            "exhaustive; ancestral by default, adaptive-pool for a tilted model."
        ),
    ] = None
    pool: Annotated[int | None, Parameter(help="Candidates of the samplers pool and particles (64); chooses pool.")] = None
    effective: Annotated[
        float, Parameter(help="adaptive-pool: candidates are drawn until none holds more than 1 / this of the weight.")
    ] = 16.0
    largest: Annotated[int, Parameter(help="adaptive-pool: candidates of the largest pool.")] = 4096
    shared: Annotated[
        bool, Parameter(negative="--own-pools", help="One pool for all draws of a prompt; else one for each draw.")
    ] = True
    block: Annotated[int, Parameter(help="particles: tokens between two weighings.")] = 8
    halvings: Annotated[int, Parameter(help="particles: start with 2^this times as many, keep half after each block.")] = 0
    steps: Annotated[int, Parameter(help="metropolis: length of each chain.")] = 100
    log_bound: Annotated[float | None, Parameter(help="rejection, quasi-rejection: bound on -E(x).")] = None
    temperature: Annotated[float, Parameter(help="Of the base, which stays normalised.")] = 1.0
    top_k: Annotated[int | None, Parameter(help="Keep the k likeliest tokens at each step.")] = None
    top_p: Annotated[float | None, Parameter(help="Keep the likeliest tokens up to this share.")] = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"There is at least 1 draw for each prompt, not {self.draws}. Nothing was drawn.")

    def name(self, *, tilted: bool) -> str:
        """The sampler that these settings ask for."""
        if self.sampler is not None:
            return self.sampler
        if not tilted:
            return "ancestral"
        return "adaptive-pool" if self.pool is None else "pool"

    def settings(self) -> "SamplerSettings":
        from esscher.samplers.choice import SamplerSettings

        pool = 64 if self.pool is None else self.pool
        return SamplerSettings(
            pool, self.steps, self.log_bound, self.effective, self.largest, self.shared, self.block, self.halvings
        )

    def target(self, target: "Tilted") -> "Tilted":
        """The target with its base truncated, where that is asked for."""
        from esscher.bases.truncated import truncated
        from esscher.target import Tilted

        base = truncated(target.base, top_k=self.top_k, top_p=self.top_p, temperature=self.temperature)
        return Tilted(base, target.energy)


@app.default
def sample(
    model: BaseFolder,
    *,
    prompt: Annotated[tuple[str, ...], Parameter(help="Text to go on from; may be given several times.")] = (),
    energy: EnergyFolder = None,
    drawing: Annotated[Drawing, Parameter(name="*")] = Drawing(),  # noqa: B008 (frozen)
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    picturing: Annotated[Picturing, Parameter(name="*")] = Picturing(),  # noqa: B008 (frozen)
    show_: Annotated[int, Parameter(name="--show", help="Candidates of each prompt to show, beside those chosen.")] = 8,
    out: Annotated[
        Path | None, Parameter(help="File for the draws, one JSON object a line; of images, the grid (samples.png).")
    ] = None,
    sharded: Sharded = False,
    quiet: Quiet = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Points after each prompt, or from nothing. Of a tilted model the candidates are shown by their share of the weight, with
    their log-probability under the base and their energy; `chosen` says how many of the draws each became. Draws of a model of
    images are a grid in a PNG."""
    from esscher.samplers.choice import choose_sampler
    from esscher.verbs.models import load_model

    name = drawing.name(tilted=energy is not None)
    sampler = choose_sampler(name, drawing.settings())
    if out is not None and out.exists():
        raise ValueError(f"The file {out} is there already. Nothing was drawn; choose another name, or remove it.")
    loaded = load_model(model, energy, cut, sharded=sharded)
    if loaded.codec is not None:
        if prompt:
            raise ValueError("Images have no text for a prompt. Nothing was drawn; use --classes or --complete.")
        grid, target = model / "samples.png" if out is None else out, drawing.target(loaded.target)
        show(image_answer(loaded, target, sampler, picturing, drawing.draws, grid, seed=seed), as_json=json)
        return
    if picturing != Picturing():
        raise ValueError(
            f"{model} is no model of images. Nothing was drawn; leave --classes, --complete, --rows and --images out."
        )
    texts = list(prompt) or [""]
    found = _shared(partial(_draw, sampler, loaded, drawing, texts, quiet=quiet), drawing.draws, len(texts), seed=seed)
    if out is not None and first_process():
        write_lines(out, found.samples)
    facts = {"model": model, "energy": energy, "sampler": name, "seed": seed, **found.facts, "out": out}
    tables = found.everything(texts) if json else found.for_people(texts, show_)
    show(Answer("esscher sample", facts, tables, found.notes), as_json=json)


@dataclass(frozen=True)
class _Found:
    """The draws, and for samplers that choose from pools what they chose from, prompt by prompt."""

    samples: list[dict[str, Any]]
    facts: dict[str, Any]
    notes: list[str]
    pools: list[dict[str, Any]] = field(default_factory=list)
    candidates: list[list[dict[str, Any]]] = field(default_factory=list)

    def everything(self, texts: list[str]) -> dict[str, Any]:
        if not self.pools:
            return {"samples": self.samples}
        pairs = zip(texts, self.candidates, strict=True)
        return {
            "samples": self.samples,
            "prompts": self.pools,
            "candidates": [{"prompt": text, **row} for text, rows in pairs for row in rows],
        }

    def for_people(self, texts: list[str], most: int) -> dict[str, Any]:
        """Of a pool, in place of the samples, the candidates with the largest shares and those that were chosen."""
        if not self.pools:
            return {"samples": self.samples}
        tables: dict[str, Any] = {"prompts": [{key: row[key] for key in row if key != "advice"} for row in self.pools]}
        for number, (text, rows) in enumerate(zip(texts, self.candidates, strict=True), 1):
            shown = [row for rank, row in enumerate(rows) if rank < most or row["chosen"]]
            tables[f"{number}. candidates after {text!r}, {len(shown)} of {len(rows)}"] = shown
        return tables


def _shared(draw: Callable[[int, "Rng"], _Found], draws: int, prompts: int, *, seed: int) -> _Found:
    """The draws of each prompt shared by the processes that were started together, each with chance of its own."""
    from esscher.bases.turns import in_turns
    from esscher.randomness import Seeded
    from esscher.training.processes import from_all, join

    if started() == 1:
        return draw(draws, Seeded(seed))
    join()
    own = len(range(rank(), draws, started()))
    with in_turns():
        found = draw(own, Seeded(seed).stream("rank", rank())) if own else _Found([], {}, [])
    every = [_Found(**one) for one in from_all(vars(found)) if one["samples"]]
    each = [len(one.samples) // prompts for one in every]
    return _Found(
        [row for place in range(prompts) for one, count in zip(every, each, strict=True)
         for row in one.samples[place * count : (place + 1) * count]],
        {"drawn_from_the_base": sum(one.facts["drawn_from_the_base"] for one in every),
         "independent_draws": all(one.facts["independent_draws"] for one in every), "processes": started()},
        list(dict.fromkeys(note for one in every for note in one.notes)),
        [one.pools[place] for place in range(prompts) for one in every if one.pools],
        [[row for one in every for row in one.candidates[place]] for place in range(prompts) if every[0].candidates],
    )  # fmt: skip


def _draw(
    sampler: "Sampler", loaded: "Model", drawing: Drawing, texts: list[str], draws: int, rng: "Rng", *, quiet: bool
) -> _Found:
    from esscher.reports.candidates import candidate_rows, pool_rows, sample_rows
    from esscher.samplers.pool import AdaptivePool, Pool, survivors
    from esscher.samplers.watched import Tally, watched
    from esscher.space import prompts_of
    from esscher.training.progress import choose_progress

    tokenizer, target = loaded.tokenizer, watched(drawing.target(loaded.target), Tally(choose_progress(quiet).say))
    encoded = loaded.prompts(texts)
    prompts, notes = prompts_of(encoded), _notes_on_prompts(loaded, [len(tokens) for tokens in encoded])
    chosen = sampler.choose(target, prompts, draws, rng=rng) if isinstance(sampler, Pool | AdaptivePool) else []
    drawn = survivors(chosen) if chosen else sampler(target, prompts, draws, rng=rng)
    samples = sample_rows(texts, drawn, target, tokenizer)
    facts = {"drawn_from_the_base": drawn.cost, "independent_draws": drawn.independent}
    if not chosen:
        return _Found(samples, facts, notes)
    pools = pool_rows(texts, chosen)
    return _Found(samples, facts, notes + _notes_on_pools(pools), pools, candidate_rows(chosen, target, tokenizer))


def _notes_on_pools(pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where even the largest pool was too small."""
    few = [row for row in pools if not row["enough"]]
    if not few:
        return []
    return [
        f"After {len(few)} of {len(pools)} prompts, such as {few[0]['prompt']!r}, even {few[0]['candidates']:,} candidates "
        f"were too few for the weight to be spread as --effective asks: the draws lean towards the base. Raise --largest, "
        f"lower --effective, or tilt less."
    ]


def _notes_on_prompts(loaded: "Model", lengths: Sequence[int]) -> list[str]:
    """A model of chunks has learnt what follows prompts of one length."""
    other = [length for length in lengths if length != loaded.given]
    if not loaded.given or not other:
        return []
    return [f"The model was made for prompts of {loaded.given} tokens; {len(other)} of these have others, such as {other[0]}."]
