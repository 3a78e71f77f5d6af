"""The command line: a verb for each stage, loaded when it is called.

Importing this module imports no torch, so that help answers at once. A verb lives in `esscher.commands`:
it parses, makes one call of the library, and prints. Settings come from defaults, then from the YAML file
given by --config, then from flags; an unknown key is an error that names the file and the key.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Dict

VERBS = {
    "train": "Train a base model on text or on an embedded data set; resumes exactly.",
    "tilt": "Give a base an energy over whole sequences: a network that learns from text, or weighed features.",
    "finetune": "Teach a pretrained model a task: classes, numbers, choices, answers in passages, rankings.",
    "predict": "What a fine-tuned model says of new texts.",
    "distil": "Bring a tilted model back into a plain one that serves at the old speed.",
    "sample": "Draw from a model, tilted or not, with log-probabilities and weights.",
    "explore": "A page to look at a model with: candidates, tokens, energies, a distilled model beside.",
    "compare": "People judge texts of two models blind; preference rates with intervals and p-values.",
    "measure": "Perplexity and bits of a model on text, with intervals, per token, word and byte.",
    "serve": "A model, tilted or not, behind an endpoint that speaks OpenAI's completions.",
    "rescore": "Choose among the candidates of n-best lists: tuned weights, word error rate or BLEU with intervals.",
    "translate": "Translate sentences or a file with a base that reads a source: beam, draws, least risk.",
    "score": "How good a translation is: BLEU, chrF, TER, ROUGE, METEOR with intervals, by length, beside another.",
    "analyse": "What a tilted model does differently: energies, next tokens, repetition, a classifier; context, rank.",
    "exact": "Exact answers: motif processes, regular languages, n-gram models.",
    "data": "Look at a data source: sizes, splits, tokens, examples.",
    "env": "What this machine and installation have.",
    "report": "Runs side by side: the numbers they share with their intervals, the settings that differ.",
    "reproduce": "Run a recipe and print its table beside the paper's.",
}

app = App(
    name="esscher",
    help="Better autoregressive sequence models by energies over whole sequences: p(x) ~ a(x) exp(-E(x)).",
    help_epilogue="Each verb has --help with an example. To start: esscher train --out runs/first; esscher sample runs/first",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` says what became of the work
)
for _place, (_verb, _help) in enumerate(VERBS.items()):
    app.command(f"esscher.commands.{_verb}:app", name=_verb, help=_help, sort_key=_place)

app.meta.suppress_keyboard_interrupt = False


@app.meta.default
def _with_config(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, Parameter(help="YAML file with settings of the verb; flags override it.")] = None,
    json_lines: Annotated[
        bool, Parameter(negative="", help="Show progress as JSON objects on standard error, one a line.")
    ] = False,
) -> object:
    from esscher.training.progress import progress_as

    app.config = () if config is None else (_settings(config, tokens),)
    with progress_as("json-lines" if json_lines else "suitable"):
        return app(tokens)


def _settings(file: Path, tokens: tuple[str, ...]) -> Dict:
    """The settings of the file, as those of the verb that is called.

    They are put under the verb's name, because cyclopts skips a flat key that is also the name of a verb ("data").
    """
    import yaml

    try:
        settings = yaml.safe_load(file.read_text(encoding="utf8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {error}. Nothing was done; mend the file.") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds no settings: it must be a mapping of keys to values. Nothing was done.")
    for verb in reversed(app.parse_commands(tokens)[0]):
        settings = {verb: settings}
    return Dict(settings, source=str(file))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's making are a message and exit code 1, not a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if not _helped(arguments):
            app.meta(arguments)
    except KeyboardInterrupt:
        _fail("Stopped by the keyboard. What was saved is kept; training goes on with --resume.", arguments, 130)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("ESSCHER_DEBUG"):
            raise
        _fail(_message(error), arguments, 1)


def _helped(arguments: list[str]) -> bool:
    """Print a page of help, if one is asked for: of a verb the sentence of the overview, then what its own docstring says.

    cyclopts would show the sentence alone, and go through all settings once more, to see whether one is named help.
    """
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not set(app.help_flags) & set(given):
        return False
    named, path, unknown = app.parse_commands([one for one in given if one not in (*app.help_flags, *app.version_flags)])
    verb = path[-1]
    if verb.default_command is None and unknown:
        return False
    if verb.default_command is not None:
        said, doc = verb.help.partition("\n\n")[0], verb.default_command.__doc__ or ""
        more = "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
        verb.help = more if more.startswith(said) else f"{said}\n\n{more}"
    app.help_print(named)
    return True


def _message(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"There is no file {error.filename}. Nothing was done; check the path."
    return str(error) or type(error).__name__


def _fail(message: str, arguments: list[str], code: int) -> None:
    print(f"esscher: {message}", file=sys.stderr)
    if "--json" in arguments:
        print(json.dumps({"error": message}))
    sys.exit(code)
