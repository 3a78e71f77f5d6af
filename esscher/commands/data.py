"""esscher data: look at a data source before training on it."""

from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Seed
from esscher.commands.output import Answer, show
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.images import ImageConfig
from esscher.settings.train import TrainRun

app = App(name="data", help_epilogue="Example: esscher data --data.source my.txt --tokenizer.kind byte")


@dataclass(frozen=True)
class Look:
    """The part of a training run's settings that decides its data."""

    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    images: ImageConfig = field(default_factory=ImageConfig)


@app.default
def data(
    *,
    look: Annotated[Look, Parameter(name="*")] = Look(),  # noqa: B008 (frozen)
    examples: Annotated[int, Parameter(help="How many points to show.")] = 3,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The sets that training would see, with the sizes of their points."""
    from esscher.randomness import Seeded
    from esscher.verbs.training_data import prepare
    from esscher.verbs.training_images import prepare_images

    run = TrainRun("unused", look.data, look.tokenizer, look.length, images=look.images)
    material = prepare_images(run) if run.of_images else prepare(run, rng=Seeded(seed).stream("data"))
    sets = {"train": material.train, "validation": material.validation, "test": material.test}
    rows = [
        {
            "set": name,
            "points": len(x),
            "tokens": int(x.lengths.sum()),
            "mean length": float(x.lengths.double().mean()),
            "longest": int(x.lengths.max()),
        }
        for name, x in sets.items()
    ]
    some = material.train.rows(slice(0, examples))
    texts = [] if material.text is None else [{"example": text} for text in material.text.decode(some.points())]
    facts = {
        "source": look.data.source,
        **({} if material.text is None else {"tokenizer": material.text.name}),
        "vocab_size": material.space.vocab_size,
        "max_length": material.space.max_length,
        "seed": seed,
        **dict(material.truth),
    }
    notes = [] if json else material.description.splitlines()
    show(Answer("esscher data", facts, {"sets": rows, "examples": texts}, notes), as_json=json)
