"""esscher sample: draw from a model, tilted or not."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.models import Eos, MaxLength
from esscher.commands.output import Answer, Json, Seed, show

if TYPE_CHECKING:
    from esscher.data.tokenizers import Tokenizer
    from esscher.draws import Draws
    from esscher.target import Tilted

app = App(name="sample", help_epilogue="Example: esscher sample runs/first --prompt 'Return the' --draws 4 --temperature 0.8")


@dataclass(frozen=True)
class Drawing:
    """How to draw."""

    draws: Annotated[int, Parameter(help="Draws for each prompt.")] = 4
    sampler: Annotated[
        str | None,
        Parameter(
            help="ancestral, importance, pool, rejection, quasi-rejection, metropolis, particles or exhaustive; "
            "ancestral by default, pool for a tilted model."
        ),
    ] = None
    pool: Annotated[int, Parameter(help="Candidates for each draw of the pool sampler.")] = 64
    steps: Annotated[int, Parameter(help="Length of each chain of the Metropolis sampler.")] = 100
    log_bound: Annotated[float | None, Parameter(help="Bound on -E(x) of the rejection samplers.")] = None
    temperature: Annotated[float, Parameter(help="Of the base, which stays normalised.")] = 1.0
    top_k: Annotated[int | None, Parameter(help="Keep the k likeliest tokens at each step.")] = None
    top_p: Annotated[float | None, Parameter(help="Keep the likeliest tokens up to this share.")] = None


@app.default
def sample(
    model: Annotated[Path, Parameter(help="Folder of the base.")],
    *,
    prompt: Annotated[tuple[str, ...], Parameter(help="Text to go on from; may be given several times.")] = (),
    energy: Annotated[Path | None, Parameter(help="Folder of an energy that tilts the base.")] = None,
    drawing: Annotated[Drawing, Parameter(name="*")] = Drawing(),  # noqa: B008 (frozen)
    max_length: MaxLength = None,
    eos: Eos = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Points after each prompt, or from nothing, with their log-probability under the base and their log weight."""
    from esscher.bases.truncated import Truncated
    from esscher.commands.models import load_target
    from esscher.randomness import Seeded
    from esscher.samplers.choice import SamplerSettings, choose_sampler
    from esscher.space import prompts_of
    from esscher.target import Tilted

    name = drawing.sampler or ("pool" if energy is not None else "ancestral")
    sampler = choose_sampler(name, SamplerSettings(drawing.pool, drawing.steps, drawing.log_bound))
    target, tokenizer = load_target(model, energy, max_length=max_length, eos=eos)
    if (drawing.temperature, drawing.top_k, drawing.top_p) != (1.0, None, None):
        cut = Truncated(target.base, top_k=drawing.top_k, top_p=drawing.top_p, temperature=drawing.temperature)
        target = Tilted(cut, target.energy)
    texts = list(prompt) or [""]
    draws = sampler(target, prompts_of(tokenizer.encode(texts)), drawing.draws, rng=Seeded(seed))
    facts = {"model": model, "energy": energy, "sampler": name, "seed": seed, "drawn_from_the_base": draws.cost}
    show(Answer("esscher sample", facts, {"samples": _rows(texts, draws, target, tokenizer)}), as_json=json)


def _rows(prompts: list[str], draws: "Draws", target: "Tilted", tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    count = draws.log_weight.shape[1]
    columns = zip(
        tokenizer.decode(draws.x.points()),
        draws.log_base.view(-1).tolist(),
        (-target.log_weight(draws.x)).tolist(),
        draws.log_weight.view(-1).tolist(),
        strict=True,
    )
    return [
        {"prompt": prompts[row // count], "text": text, "log_base": log_base, "energy": energy, "log_weight": log_weight}
        for row, (text, log_base, energy, log_weight) in enumerate(columns)
    ]
