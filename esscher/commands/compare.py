"""esscher compare: people judge texts of two models blind; their votes are kept, and come to a preference rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Level, Seed
from esscher.commands.output import Answer, show
from esscher.explorer.serving import Serving, serve

app = App(
    name="compare",
    help_epilogue="Example: esscher compare runs/first runs/plain --prompts prompts.txt --out runs/judged\n\n"
    "The results so far: esscher compare --results runs/judged",
)
Side = Annotated[Path | None, Parameter(help="Folder of a model, or a file with a text for each prompt, one a line.")]


@app.default
def compare(
    a: Side = None,
    b: Side = None,
    *,
    prompts: Annotated[Path | None, Parameter(help="File of prompts, one a line; an empty line is the empty prompt.")] = None,
    energy_a: Annotated[Path | None, Parameter(help="Energy that tilts A.")] = None,
    energy_b: Annotated[Path | None, Parameter(help="Energy that tilts B.")] = None,
    out: Annotated[Path | None, Parameter(help="Folder of pairs and votes; a comparison that was stopped goes on.")] = None,
    results: Annotated[Path | None, Parameter(help="Print what the votes in this folder come to, and stop.")] = None,
    level: Level = 0.95,
    serving: Annotated[Serving, Parameter(name="*")] = Serving(),  # noqa: B008 (frozen)
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Each rater sees every pair once, blind, in an order and on sides of their own; now and then a pair with a known answer
    checks attention. A vote is on the disk before the next pair is shown."""
    if results is not None:
        show(_results(results, level), as_json=json)
        return
    if a is None or b is None or prompts is None or out is None:
        raise ValueError("A comparison needs A, B, --prompts and --out. Nothing was served; or give --results alone.")
    from esscher.explorer.ballots import Ballots, make_pairs
    from esscher.explorer.compare_page import build_comparison

    asked = prompts.read_text(encoding="utf8").splitlines()
    texts = [_texts(side, energy, asked, seed, name) for side, energy, name in ((a, energy_a, "a"), (b, energy_b, "b"))]
    ballots = Ballots.begin(out, make_pairs(asked, *texts, seed=seed), seed=seed)
    serve(build_comparison(ballots), serving)


def _texts(side: Path, energy: Path | None, prompts: Sequence[str], seed: int, name: str) -> list[str]:
    """What the model writes after each prompt, or the lines of a file."""
    if side.is_file():
        lines = side.read_text(encoding="utf8").splitlines()
        if len(lines) != len(prompts):
            raise ValueError(f"{side} has {len(lines)} lines for {len(prompts)} prompts. Nothing was served; mend the file.")
        return lines
    from esscher.randomness import Seeded
    from esscher.samplers.choice import SamplerSettings, choose_sampler
    from esscher.space import prompts_of
    from esscher.verbs.models import load_model

    model = load_model(side, energy)
    sampler = choose_sampler("ancestral" if energy is None else "adaptive-pool", SamplerSettings())
    found = sampler(model.target, prompts_of(model.prompts(prompts)), 1, rng=Seeded(seed).stream("compare", name))
    return model.tokenizer.decode(found.x.points())


def _results(folder: Path, level: float) -> Answer:
    from esscher.estimators.preference import attention, preference
    from esscher.explorer.ballots import Ballots

    ballots = Ballots(folder)
    votes, checks = ballots.votes(), ballots.checks
    found = preference(votes, checks, level=level)
    facts: dict[str, Any] = {
        "folder": folder,
        "prefer_b": found.rate,
        "p_value": found.p_value,
        "pairs_decided": found.pairs,
        "pairs_undecided": found.undecided,
        "votes_for_a": found.votes.get("a", 0),
        "votes_for_b": found.votes.get("b", 0),
        "votes_for_neither": found.votes.get("equal", 0),
        "agreement_of_raters": found.agreement,
        "krippendorff_alpha": found.alpha,
    }
    right = attention(votes, checks)
    raters = [
        {"rater": name, "votes": sum(vote.rater == name for vote in votes), "checks right": right.get(name),
         "counted": name not in found.left_out}
        for name in dict.fromkeys(vote.rater for vote in votes)
    ]  # fmt: skip
    notes = [
        f"{name} answered {share:.0%} of the attention checks rightly and is left out."
        for name, share in found.left_out.items()
    ]
    return Answer("esscher compare", facts, {"raters": raters}, notes)
