"""What the recipes on long memory study, by scale: which text, which models, trained how, seen how far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from esscher.recipes.sources import DATA, PENN_TREEBANK, not_here, wikitext
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.dynamic import DynamicConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig

NONE, XL = "no memory", "Transformer-XL"
HELD_OUT = 0.01  # of excerpts: 100,000 bytes to choose by and as many to judge by

TEXTS = {
    "text8": (
        DataConfig(str(DATA / "text8-10M/text8.10M.gz"), split="raw", held_out=HELD_OUT),
        TokenizerConfig("character"),
        "character",
    ),
    "enwik8": (
        DataConfig(str(DATA / "enwik8-10M/enwik8.10M.gz"), split="raw", held_out=HELD_OUT),
        TokenizerConfig("byte"),
        "byte",
    ),
    "gutenberg": (
        DataConfig(str(DATA / "gutenberg"), unit="document", split="place", held_out=HELD_OUT),
        TokenizerConfig("character"),
        "character",
    ),
}

SMALL = BaseChoice(
    "transformer-xl", width=128, layers=4, heads=4, feedforward=512, memory=64, norm="pre",
)  # fmt: skip
TRAINING = TrainingConfig(
    steps=2_000, batch_size=16, learning_rate=2e-3, schedule="cosine", warmup=200, clip=0.25, evaluate_every=1_000,
)  # fmt: skip
SEGMENT = 64


@dataclass(frozen=True)
class Look:
    """A way to read the test text: how far back a position sees (None: as in training), which distances are told apart, and
    whether the weights learn from what was read."""

    reach: int | None = None
    clamp: int | None = None
    learning: DynamicConfig | None = None

    @property
    def name(self) -> str:
        """In words, for a table."""
        if self.learning is not None:
            return f"learning from it ({self.learning.rule})"
        clamped = "" if self.clamp is None else f", distances over {self.clamp:,} alike"
        return "as in training" if self.reach is None else f"{self.reach:,} back{clamped}"


@dataclass(frozen=True)
class StreamStudy:
    """A text, and models on it: how each is trained, and looked at; `against` is the one the others are compared with.
    The `start` of a run is the name of another model, whose weights it starts from."""

    name: str
    unit: str  # of the bits: byte, character or word
    models: Mapping[str, TrainRun]
    looks: Mapping[str, Sequence[Look]]
    against: str
    most: int | None = None  # tokens of the test text, from its start; None is all

    def ways(self, model: str) -> list[Look]:
        """As in training, and further ways."""
        return [Look(), *self.looks.get(model, ())]


def memory_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """Segments with and without a memory, otherwise alike."""
    if scale == "smoke":
        return [_smoke({NONE: {"memory": 0}, XL: {"memory": 16}}, {XL: [Look(32)], NONE: [Look(15)]}, NONE)], []
    if scale == "paper":
        return _published(), []
    return _here(
        {NONE: {"memory": 0}, XL: {}},
        {NONE: [Look(SEGMENT - 1)], XL: [Look(128), Look(256), Look(512), Look(512, clamp=128)]},
        NONE,
    )


def local_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """What a layer mixes positions by, otherwise alike."""
    models: dict[str, dict[str, object]] = {
        XL: {},
        "Local-XL, 32": {"mixers": ("local",), "spans": (32,)},
        "Local-XL, 16 to 64": {"mixers": ("local",), "spans": (16, 32, 64, 64)},
        "LightConv": {"mixers": ("lightconv",), "spans": (3, 7, 15, 31), "norm": "pre"},
        "DynamicConv": {"mixers": ("dynamicconv",), "spans": (3, 7, 15, 31), "norm": "pre"},
    }
    if scale == "smoke":
        short = {name: {**given, "memory": 16} for name, given in models.items()}
        return [_smoke(short, {}, XL)], []
    return _here(models, {}, XL, only="text8") if scale == "small" else ([_enwik8(models, {}, XL)], [])


def _here(
    models: dict[str, dict[str, object]], looks: dict[str, list[Look]], against: str, only: str | None = None
) -> tuple[list[StreamStudy], list[str]]:
    """The texts that are on this machine."""
    studies, left_out = [], []
    for name, (data, tokenizer, unit) in TEXTS.items():
        if only is not None and name != only:
            continue
        if not Path(data.source).exists():
            left_out.append(not_here(data.source))
            continue
        run = TrainRun("", data, tokenizer, LengthConfig(SEGMENT, stream=True), SMALL, TRAINING)
        studies.append(StreamStudy(name, unit, _variants(run, models), looks, against))
    return studies, left_out


def _variants(run: TrainRun, models: dict[str, dict[str, object]]) -> dict[str, TrainRun]:
    """The run with some settings of its base changed, for each model."""
    return {model: replace(run, base=replace(run.base, **given)) for model, given in models.items()}  # type: ignore[arg-type]


def _smoke(models: dict[str, dict[str, object]], looks: dict[str, list[Look]], against: str) -> StreamStudy:
    """Docstrings, which every machine has, and networks that learn little."""
    base = BaseChoice("transformer-xl", width=32, layers=2, heads=2, feedforward=64)
    training = TrainingConfig(steps=60, batch_size=16, learning_rate=5e-3, evaluate_every=60)
    run = TrainRun("", DataConfig(), TokenizerConfig("character"), LengthConfig(16, stream=True), base, training)
    return StreamStudy("docstrings", "character", _variants(run, models), looks, against, 8_000)


PAPER_TRAINING = TrainingConfig(optimiser="adam", learning_rate=2.5e-4, schedule="cosine", clip=0.25, evaluate_every=4_000)


WIKITEXT_XL = BaseChoice(
    "transformer-xl", width=410, layers=16, heads=10, head_width=41, feedforward=2100, dropout=0.1, memory=150,
    cutoffs=(20_000, 40_000, 200_000),
)  # fmt: skip


def _enwik8(models: dict[str, dict[str, object]], looks: dict[str, list[Look]], against: str) -> StreamStudy:
    """12 layers, 41 million parameters, on the whole enwik8 (a file of 100,000,000 bytes in the working folder)."""
    base = BaseChoice(
        "transformer-xl", width=512, layers=12, heads=8, head_width=64, feedforward=2048, dropout=0.1, memory=512,
    )  # fmt: skip
    run = TrainRun(
        "", DataConfig("enwik8", split="raw"), TokenizerConfig("byte"), LengthConfig(512, stream=True), base,
        replace(PAPER_TRAINING, steps=400_000, batch_size=22),
    )  # fmt: skip
    return StreamStudy("enwik8", "byte", _variants(run, models), looks, against)


def _published() -> list[StreamStudy]:
    """The settings of the released scripts; PTB, of which none was released, in those of the thesis's words."""
    enwik8 = _enwik8({XL: {}}, {XL: [Look(2_100, 820)]}, XL)
    large = replace(
        enwik8.models[XL],
        base=BaseChoice(
            "transformer-xl", width=1024, layers=24, heads=8, head_width=128, feedforward=3072, dropout=0.15,
            attention_dropout=0.15, memory=768,
        ),
        length=LengthConfig(768, stream=True),
        training=replace(PAPER_TRAINING, steps=400_000, batch_size=64, warmup=4_000),
    )  # fmt: skip
    text8 = {
        name: replace(run, data=DataConfig("text8", split="raw"), tokenizer=TokenizerConfig("character"))
        for name, run in (("12 layers", enwik8.models[XL]), ("24 layers", large))
    }
    looks = {"12 layers": [Look(2_100, 820)], "24 layers": [Look(3_800, 1_000)]}
    return [
        StreamStudy("enwik8", "byte", {"12 layers": enwik8.models[XL], "24 layers": large}, looks, "12 layers"),
        StreamStudy("text8", "character", text8, looks, "12 layers"),
        _wikitext(),
        _billion_words(),
        _penn_treebank(),
    ]


def _wikitext() -> StreamStudy:
    data, words = wikitext(103), TokenizerConfig("word", vocab_size=267_735)
    large = BaseChoice(
        "transformer-xl", width=1024, layers=18, heads=16, head_width=64, feedforward=4096, dropout=0.2, memory=384,
        attention_dropout=0.2, cutoffs=(20_000, 40_000, 200_000), shrink=4, untied=True,
    )  # fmt: skip
    models = {
        "16 layers": TrainRun(
            "", data, words, LengthConfig(150, stream=True), WIKITEXT_XL,
            replace(PAPER_TRAINING, steps=200_000, batch_size=60),
        ),
        "18 layers": TrainRun(
            "", data, words, LengthConfig(384, stream=True), large,
            replace(PAPER_TRAINING, steps=4_000_000, batch_size=128, warmup=16_000),
        ),
    }  # fmt: skip
    looks = {"16 layers": [Look(640, 400)], "18 layers": [Look(1_600, 1_000)]}
    return StreamStudy("WikiText-103", "word", models, looks, "16 layers")


def _billion_words() -> StreamStudy:
    words = TokenizerConfig("word", vocab_size=793_471)
    data = DataConfig("dvruette/lm1b", validation="dvruette/lm1b::test", test="dvruette/lm1b::test")  # both, as released
    base = BaseChoice(
        "transformer-xl", width=1024, layers=18, heads=8, head_width=128, feedforward=4096, memory=32,
        cutoffs=(60_000, 100_000, 640_000), shrink=4, tied_projections="none", untied=True,
    )  # fmt: skip
    large = replace(
        base, width=1280, layers=24, heads=16, head_width=80, feedforward=8192, dropout=0.05, attention_dropout=0.05
    )
    length = LengthConfig(32, stream=True)
    models = {
        "18 layers": TrainRun(
            "", data, words, length, base, replace(PAPER_TRAINING, steps=500_000, batch_size=224, warmup=20_000)
        ),
        "24 layers": TrainRun(
            "", data, words, length, large,
            replace(PAPER_TRAINING, steps=1_200_000, batch_size=512, warmup=30_000, learning_rate=1e-4),
        ),
    }  # fmt: skip
    return StreamStudy("One Billion Word", "word", models, {name: [Look(128)] for name in models}, "18 layers")


def _penn_treebank() -> StreamStudy:
    base = BaseChoice(
        "transformer-xl", width=380, layers=16, heads=10, head_width=38, feedforward=900, dropout=0.45, memory=70,
        attention_dropout=0.2, variational=True,
    )  # fmt: skip
    run = TrainRun(
        "", PENN_TREEBANK, TokenizerConfig("word", 10_000),
        LengthConfig(70, stream=True, segments="random"), base,
        replace(PAPER_TRAINING, steps=60_000, batch_size=20, average=0.7),
    )  # fmt: skip
    return StreamStudy("Penn Treebank", "word", {XL: run}, {XL: [Look(140)]}, XL)
