"""esscher exact: answers without chance."""

import math
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import Json
from esscher.commands.output import Answer, show

app = App(name="exact", help_epilogue="Example: esscher exact motif --motif 10001011111000 --length 30 --mixture 0.9")


@app.command(sort_key=0, help_epilogue="Example: esscher exact motif --motif 01011101101 --length 30 --json")
def motif(
    *,
    motif: Annotated[str, Parameter(help="The string that must appear.")],
    length: Annotated[int, Parameter(help="Symbols of each string, the end symbol not counted.")] = 30,
    alphabet: Annotated[str, Parameter(help="The symbols.")] = "01",
    mixture: Annotated[float, Parameter(help="Share of strings with the motif in the mixture process.")] = 0.9,
    json: Json = False,
) -> None:
    """Strings of one length that contain a motif: their number and the entropies of the processes, in nats."""
    from esscher.exact.counting import check_motif, count_strings, process_entropy

    check_motif(motif, length, alphabet, mixture)
    counts = count_strings(motif, length, alphabet)
    pure, mixed = process_entropy(counts, None), process_entropy(counts, mixture)
    facts = {
        "motif": motif,
        "length": length,
        "alphabet": alphabet,
        "count": counts[0],
        "log_z": pure,
        "entropy": pure,
        "entropy_per_symbol": pure / (length + 1),
        "mixture": mixture,
        "mixture_entropy": mixed,
        "mixture_entropy_per_symbol": mixed / (length + 1),
        "symbols_counted": length + 1,
    }
    show(Answer("motif process (exact, nats; the end symbol counts)", facts, {}), as_json=json)


@app.command(sort_key=1, help_epilogue="Example: esscher exact language '(0|10)*1?' --length 20")
def language(
    pattern: Annotated[str, Parameter(help="A regular expression over the alphabet.")],
    *,
    length: Annotated[int, Parameter(help="Symbols of each string, the end symbol not counted.")] = 30,
    alphabet: Annotated[str, Parameter(help="The symbols.")] = "01",
    search: Annotated[
        bool, Parameter(negative="", help="The pattern may match anywhere, instead of the whole string.")
    ] = False,
    json: Json = False,
) -> None:
    """Strings of one length that match a pattern: how many, their share, the entropy of a uniform choice among them."""
    from esscher.exact.expectation import entropy
    from esscher.exact.languages import matching_strings

    process = matching_strings(pattern, length, alphabet, match="search" if search else "full")
    nats = float(entropy(process))
    facts = {
        "pattern": pattern,
        "length": length,
        "alphabet": alphabet,
        "log_count": nats,
        "log_share": nats - length * math.log(len(alphabet)),
        "entropy_per_symbol": nats / (length + 1),
        "symbols_counted": length + 1,
    }
    show(Answer("strings that match (exact, nats; the end symbol counts)", facts, {}), as_json=json)


@app.command(sort_key=2, help_epilogue="Example: esscher exact ngram --data my.txt --order 3")
def ngram(
    *,
    data: Annotated[str, Parameter(help="As for esscher train: docstrings, a path, a Hugging Face name.")] = "docstrings",
    order: Annotated[int, Parameter(help="Characters in a gram.")] = 3,
    length: Annotated[int, Parameter(help="Longest text, the end symbol counted; longer ones are cut.")] = 100,
    json: Json = False,
) -> None:
    """A character n-gram model of real text: its own entropy and mean length, exactly, and its perplexity on held-out text."""
    from esscher.bases.ngram import fit_ngram
    from esscher.estimators.perplexity import cross_entropy
    from esscher.exact.expectation import entropy, mean_length
    from esscher.randomness import Seeded
    from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
    from esscher.settings.train import TrainRun
    from esscher.target import Tilted
    from esscher.verbs.training_data import prepare

    run = TrainRun("unused", DataConfig(source=data), TokenizerConfig("character"), LengthConfig(length))
    material = prepare(run, rng=Seeded(0))
    model = fit_ngram(material.train, material.space, order)
    nats, mean = float(entropy(model)), float(mean_length(model))
    facts = {
        "data": data,
        "order": order,
        "characters": material.space.vocab_size,
        "entropy": nats,
        "mean_length": mean,
        "entropy_per_symbol": nats / mean,
        "held_out_nats_per_symbol": cross_entropy(Tilted(model), material.test)["token"],
    }
    show(Answer("character n-gram model (exact, nats; the end symbol counts)", facts, {}), as_json=json)
