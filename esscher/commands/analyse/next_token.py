"""esscher analyse next-token: the likeliest next tokens after a prompt, under the base and under the joint."""

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.analyse.compared import Energy, Plot
from esscher.commands.flags import BaseFolder, Cutting, Json, Level, Seed
from esscher.commands.output import Answer, show
from esscher.cut import Cut

if TYPE_CHECKING:
    from esscher.estimate import Estimate
    from esscher.space import Sequences
    from esscher.verbs.models import Model

app = App(
    name="next-token",
    help_epilogue="Example: esscher analyse next-token runs/first --energy runs/tilted --prompt 'Return the'",
)


@app.default
def next_token(
    model: BaseFolder,
    *,
    energy: Energy,
    prompt: Annotated[str, Parameter(help="Text to go on from; empty means the beginning of a text.")],
    top: Annotated[int, Parameter(help="Show so many of the base's likeliest tokens, and of the joint's.")] = 10,
    draws: Annotated[int, Parameter(help="Continuations for each row of the table.")] = 256,
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The likeliest next tokens after a prompt under the base (exact) and under the joint; all rows sum to one."""
    from esscher.estimators.next_token import next_tokens
    from esscher.randomness import Seeded
    from esscher.reports.plots import estimate_bars, save_picture
    from esscher.reports.token_names import token_name
    from esscher.verbs.models import load_model

    loaded = load_model(model, energy, cut)
    tokens, notes = _prompt(loaded, prompt)
    found = next_tokens(loaded.target, tokens, top=top, draws=draws, level=level, rng=Seeded(seed))
    given = tokens.tokens[0].tolist()
    names = [token_name(row.token, given, loaded.tokenizer) for row in found.rows]
    rows = [
        {"text": name, "token": row.token, "base": row.base, "joint": row.joint, "joint over base": _times(row.joint, row.base)}
        for name, row in zip(names, found.rows, strict=True)
    ]
    length = int(tokens.start[0])
    facts: dict[str, Any] = {"model": model, "energy": energy, "prompt": prompt, "prompt_tokens": length, "seed": seed}
    if plot is not None:
        series = {"base": [row.base for row in found.rows], "joint": [row.joint for row in found.rows]}
        facts["plot"] = save_picture(estimate_bars(names, series, label="probability of the next token"), plot)
    show(Answer("esscher analyse next-token", facts, {"next_tokens": rows}, [*notes, *found.warnings]), as_json=json)


def _prompt(loaded: "Model", prompt: str) -> tuple["Sequences", list[str]]:
    """The prompt as tokens, and a remark where the model learnt from prompts of another length."""
    from esscher.space import prompts_of

    tokens = prompts_of(loaded.prompts([prompt]))
    length = int(tokens.start[0])
    if length == 0 and loaded.given > 0:
        raise ValueError(
            f"The prompt is empty, and this model goes on from {loaded.given} tokens. Nothing was computed; "
            f"give --prompt some text."
        )
    if loaded.cut.given is None or length == loaded.given:
        return tokens, []
    return tokens, [f"The energy learnt from prompts of {loaded.given} tokens, and this one has {length}."]


def _times(joint: "Estimate", base: "Estimate") -> "Estimate | None":
    return joint.map(lambda share: share / base.value) if base.value > 0 else None
