"""Settings of the recipes on Transformer-XL and Local-XL at each scale: texts, models, training and evaluation modes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from esscher.data.config import DataConfig, TokenizerConfig
from esscher.networks.transformer_config import TransformerXLConfig
from esscher.papers.sources import DATA, PENN_TREEBANK, missing_message, wikitext
from esscher.papers.streams import EvaluationMode, StreamStudy, stream_run
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

StreamStudies = tuple[list[StreamStudy], list[str]]  # and a message for each text that was not found
NO_MEMORY, XL = "no memory", "Transformer-XL"
HELD_OUT = 0.01  # of excerpts: 100,000 bytes for validation and as many for the test
SEGMENT = 64

TEXTS = {  # data, and the unit of the bits
    "text8": (DataConfig(str(DATA / "text8-10M/text8.10M.gz"), split="raw", held_out=HELD_OUT), "character"),
    "enwik8": (DataConfig(str(DATA / "enwik8-10M/enwik8.10M.gz"), split="raw", held_out=HELD_OUT), "byte"),
    "gutenberg": (DataConfig(str(DATA / "gutenberg"), unit="document", split="position", held_out=HELD_OUT), "character"),
}
SMALL = TransformerXLConfig(width=128, layers=4, heads=4, feedforward=512, memory=64, norm="pre")
TRAINING = TrainingConfig(
    steps=2_000, batch_size=16, learning_rate=2e-3, schedule="cosine", warmup_steps=200, max_grad_norm=0.25,
    evaluate_every=1_000,
)  # fmt: skip
PAPER_TRAINING = TrainingConfig(
    optimizer="adam", learning_rate=2.5e-4, schedule="cosine", max_grad_norm=0.25, evaluate_every=4_000
)
WIKITEXT_XL = TransformerXLConfig(
    width=410, layers=16, heads=10, head_width=41, feedforward=2100, dropout=0.1, memory=150,
    cutoffs=(20_000, 40_000, 200_000),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Models that differ in some settings of one base, and the one that the others are compared with."""

    changes: Mapping[str, dict[str, object]]
    baseline: str
    evaluation_modes: Mapping[str, Sequence[EvaluationMode]] = field(default_factory=dict)

    def study(self, name: str, unit: str, run: TrainRun, test_limit: int | None = None) -> StreamStudy:
        """The models on one text."""
        models = {model: replace(run, base=replace(run.base, **change)) for model, change in self.changes.items()}
        return StreamStudy(
            name=name, unit=unit, models=models, baseline=self.baseline, evaluation_modes=self.evaluation_modes,
            test_limit=test_limit,
        )  # fmt: skip


def memory_studies(scale: str) -> StreamStudies:
    """The same stack with and without a memory."""
    if scale == "smoke":
        modes = {XL: [EvaluationMode(32)], NO_MEMORY: [EvaluationMode(15)]}
        return [_smoke(Comparison({NO_MEMORY: {"memory": 0}, XL: {"memory": 16}}, NO_MEMORY, modes))], []
    if scale == "paper":
        return _published(), []
    modes = {
        NO_MEMORY: [EvaluationMode(SEGMENT - 1)],
        XL: [EvaluationMode(128), EvaluationMode(256), EvaluationMode(512), EvaluationMode(512, clamp=128)],
    }
    return _local_texts(Comparison({NO_MEMORY: {"memory": 0}, XL: {}}, NO_MEMORY, modes), TEXTS)


def local_studies(scale: str) -> StreamStudies:
    """The same stack with full attention, local attention and convolutions."""
    models: dict[str, dict[str, object]] = {
        XL: {},
        "Local-XL, 32": {"mixers": ("local",), "spans": (32,)},
        "Local-XL, 16 to 64": {"mixers": ("local",), "spans": (16, 32, 64, 64)},
        "LightConv": {"mixers": ("lightconv",), "spans": (3, 7, 15, 31), "norm": "pre"},
        "DynamicConv": {"mixers": ("dynamicconv",), "spans": (3, 7, 15, 31), "norm": "pre"},
    }
    if scale == "smoke":
        return [_smoke(Comparison({name: {**change, "memory": 16} for name, change in models.items()}, XL))], []
    compared = Comparison(models, XL)
    return _local_texts(compared, ["text8"]) if scale == "small" else ([_enwik8(compared)], [])


def _smoke(compared: Comparison) -> StreamStudy:
    """Tiny networks on docstrings, which every machine has."""
    base = TransformerXLConfig(width=32, layers=2, heads=2, feedforward=64)
    training = TrainingConfig(steps=60, batch_size=16, learning_rate=5e-3, evaluate_every=60)
    run = stream_run(DataConfig(), TokenizerConfig("character"), base, training, segment=16)
    return compared.study("docstrings", "character", run, 8_000)


def _local_texts(compared: Comparison, names: Sequence[str] | Mapping[str, object]) -> StreamStudies:
    """The texts of these names that are on this machine."""
    studies, missing = [], []
    for name in names:
        data, unit = TEXTS[name]
        if Path(data.source).exists():
            tokenizer = TokenizerConfig("byte" if unit == "byte" else "character")
            studies.append(compared.study(name, unit, stream_run(data, tokenizer, SMALL, TRAINING, segment=SEGMENT)))
        else:
            missing.append(missing_message(data.source))
    return studies, missing


def _enwik8(compared: Comparison) -> StreamStudy:
    """12 layers, 41 million parameters, on the whole enwik8 (a file of 100,000,000 bytes in the working folder)."""
    base = TransformerXLConfig(
        width=512, layers=12, heads=8, head_width=64, feedforward=2048, dropout=0.1, memory=512,
    )  # fmt: skip
    training = replace(PAPER_TRAINING, steps=400_000, batch_size=22)
    run = stream_run(DataConfig("enwik8", split="raw"), TokenizerConfig("byte"), base, training, segment=512)
    return compared.study("enwik8", "byte", run)


def _published() -> list[StreamStudy]:
    """The settings of the released scripts; for PTB, of which none was released, those of the thesis."""
    small = _enwik8(Comparison({XL: {}}, XL)).models[XL]
    base = TransformerXLConfig(
        width=1024, layers=24, heads=8, head_width=128, feedforward=3072, dropout=0.15,
        attention_dropout=0.15, memory=768,
    )  # fmt: skip
    training = replace(PAPER_TRAINING, steps=400_000, batch_size=64, warmup_steps=4_000)
    large = stream_run(small.data, small.tokenizer, base, training, segment=768)
    enwik8 = {"12 layers": small, "24 layers": large}
    text8 = {
        name: replace(run, data=DataConfig("text8", split="raw"), tokenizer=TokenizerConfig("character"))
        for name, run in enwik8.items()
    }
    modes = {"12 layers": [EvaluationMode(2_100, clamp=820)], "24 layers": [EvaluationMode(3_800, clamp=1_000)]}
    return [
        StreamStudy(name="enwik8", unit="byte", models=enwik8, baseline="12 layers", evaluation_modes=modes),
        StreamStudy(name="text8", unit="character", models=text8, baseline="12 layers", evaluation_modes=modes),
        _wikitext(),
        _billion_words(),
        _penn_treebank(),
    ]


def _wikitext() -> StreamStudy:
    data, words = wikitext(103), TokenizerConfig("word", vocab_size=267_735)
    large = TransformerXLConfig(
        width=1024, layers=18, heads=16, head_width=64, feedforward=4096, dropout=0.2, memory=384,
        attention_dropout=0.2, cutoffs=(20_000, 40_000, 200_000), div_value=4, untied_biases=True,
    )  # fmt: skip
    short = replace(PAPER_TRAINING, steps=200_000, batch_size=60)
    long = replace(PAPER_TRAINING, steps=4_000_000, batch_size=128, warmup_steps=16_000)
    models = {
        "16 layers": stream_run(data, words, WIKITEXT_XL, short, segment=150),
        "18 layers": stream_run(data, words, large, long, segment=384),
    }
    modes = {"16 layers": [EvaluationMode(640, clamp=400)], "18 layers": [EvaluationMode(1_600, clamp=1_000)]}
    return StreamStudy(name="WikiText-103", unit="word", models=models, baseline="16 layers", evaluation_modes=modes)


def _billion_words() -> StreamStudy:
    words = TokenizerConfig("word", vocab_size=793_471)
    data = DataConfig("dvruette/lm1b", validation="dvruette/lm1b::test", test="dvruette/lm1b::test")  # both, as released
    base = TransformerXLConfig(
        width=1024, layers=18, heads=8, head_width=128, feedforward=4096, memory=32,
        cutoffs=(60_000, 100_000, 640_000), div_value=4, tied_projections="none", untied_biases=True,
    )  # fmt: skip
    large = replace(
        base, width=1280, layers=24, heads=16, head_width=80, feedforward=8192, dropout=0.05, attention_dropout=0.05
    )
    short = replace(PAPER_TRAINING, steps=500_000, batch_size=224, warmup_steps=20_000)
    long = replace(PAPER_TRAINING, steps=1_200_000, batch_size=512, warmup_steps=30_000, learning_rate=1e-4)
    models = {
        "18 layers": stream_run(data, words, base, short, segment=32),
        "24 layers": stream_run(data, words, large, long, segment=32),
    }
    modes = {name: [EvaluationMode(128)] for name in models}
    return StreamStudy(name="One Billion Word", unit="word", models=models, baseline="18 layers", evaluation_modes=modes)


def _penn_treebank() -> StreamStudy:
    base = TransformerXLConfig(
        width=380, layers=16, heads=10, head_width=38, feedforward=900, dropout=0.45, memory=70,
        attention_dropout=0.2, variational=True,
    )  # fmt: skip
    training = replace(PAPER_TRAINING, steps=60_000, batch_size=20, swa_start=0.7)
    run = stream_run(PENN_TREEBANK, TokenizerConfig("word", 10_000), base, training, segment=70, segments="random")
    modes = {XL: [EvaluationMode(140)]}
    return StreamStudy(name="Penn Treebank", unit="word", models={XL: run}, baseline=XL, evaluation_modes=modes)
