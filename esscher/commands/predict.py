"""esscher predict: what a fine-tuned model says of new texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json
from esscher.commands.output import Answer, show, write_lines

if TYPE_CHECKING:
    from esscher.data.examples import Row
    from esscher.verbs.finetuned import Finetuned

app = App(
    name="predict",
    help_epilogue="Example: esscher predict runs/authors 'It was a dark night.'; esscher predict runs/answers --data new.jsonl",
)


@app.default
def predict(
    model: Annotated[Path, Parameter(help="Folder of a fine-tuned model.")],
    text: Annotated[tuple[str, ...], Parameter(help="Texts, where the task reads one text; or give --data.")] = (),
    *,
    data: Annotated[
        str | None, Parameter(help="File with the columns that the model learnt from, or lines of text (.txt).")
    ] = None,
    out: Annotated[Path | None, Parameter(help="File for the answers, one JSON object a line.")] = None,
    json: Json = False,
) -> None:
    """One answer for each text, in order; of data with labels also how good they are."""
    from esscher.data.examples import examples_of
    from esscher.verbs.finetuned import load_finetuned

    if (data is None) == (not text):
        raise ValueError("Give texts, or a file with --data. Nothing was predicted.")
    loaded = load_finetuned(model)
    examples = examples_of(loaded.task, _rows(loaded, text, data), loaded.columns, data or "what was given")
    answers = loaded.predict(examples)
    if out is not None:
        write_lines(out, answers)
    known = all(one.right is not None for one in examples)
    measured = loaded.labelling.measured(answers, examples) if known else {}
    tables: dict[str, Sequence[Any]] = {"answers": answers} if out is None or json else {}
    if measured:
        tables["measured"] = [{"measured": name, "value": value} for name, value in measured.items()]
    show(Answer("esscher predict", {"model": model, "task": loaded.task, "examples": len(examples)}, tables), as_json=json)


def _rows(model: "Finetuned", texts: Sequence[str], data: str | None) -> "list[Row]":
    from esscher.data.examples import read_rows
    from esscher.data.sources import read_lines

    if data is not None and not data.endswith(".txt"):
        return read_rows(data)
    columns = model.columns
    if columns.second is not None or model.task == "choose":
        raise ValueError(
            f"The model learnt to {model.task} from more than one text of a row. Nothing was predicted; give --data with the "
            f"columns {columns.text} and {columns.second or columns.options}."
        )
    lines = texts if data is None else [line for line in read_lines(Path(data)) if line.strip()]
    return [{columns.text: line} for line in lines]
