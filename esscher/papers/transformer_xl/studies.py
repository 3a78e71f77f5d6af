"""The studies of Transformer-XL: a memory on every text, a longer study with a recurrent network beside it, other mixers of
positions, and the published sizes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from esscher.data.config import DataConfig, TokenizerConfig
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerXLConfig, published_attention_span
from esscher.papers.sources import DATA, PENN_TREEBANK, missing_message, wikitext
from esscher.papers.streams import EvaluationMode, StreamStudy, stream_run
from esscher.papers.transformer_xl.claims import LSTM, NO_MEMORY, XL
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

StreamStudies = tuple[list[StreamStudy], list[str]]  # and a message for each text that was not found
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
RECURRENT = LstmConfig(width=400, layers=1, embedding=128)  # as many parameters as SMALL
LONGER = 20_000  # updates
MEMORY_MODES = {
    NO_MEMORY: [EvaluationMode(SEGMENT - 1)],
    XL: [EvaluationMode(128), EvaluationMode(256), EvaluationMode(512), EvaluationMode(512, clamp=128)],
}
LONGER_MODES = {NO_MEMORY: [EvaluationMode(SEGMENT - 1)], XL: [EvaluationMode(256)]}
PAPER_TRAINING = TrainingConfig(
    optimizer="adam", learning_rate=2.5e-4, schedule="cosine", max_grad_norm=0.25, evaluate_every=4_000
)
WIKITEXT_XL = TransformerXLConfig(
    width=410, layers=16, heads=10, head_width=41, feedforward=2100, dropout=0.1, memory=150,
    cutoffs=(20_000, 40_000, 200_000),
)  # fmt: skip


def memory_studies(scale: str) -> StreamStudies:
    """The same stack with and without a memory."""
    if scale == "paper":
        return _published(), []
    modes = {NO_MEMORY: [EvaluationMode(15)], XL: [EvaluationMode(32)]} if scale == "smoke" else MEMORY_MODES
    return _studies(scale, TEXTS, {NO_MEMORY: {"memory": 0}, XL: {}}, modes)


def longer_studies(scale: str) -> list[StreamStudy]:
    """text8 for ten times as many updates, one seed, with a recurrent network of as many parameters."""
    if scale == "paper":
        return []
    longer = {"docstrings": replace(RECURRENT, width=32, embedding=16), "text8": RECURRENT}
    studies = []
    for study in _studies(scale, ["text8"], {NO_MEMORY: {"memory": 0}, XL: {}}, {} if scale == "smoke" else LONGER_MODES)[0]:
        steps = {"smoke": 80, "small": LONGER}[scale]
        runs = {name: replace(run, training=replace(run.training, steps=steps)) for name, run in study.models.items()}
        runs[LSTM] = replace(runs[XL], base=longer[study.name])
        studies.append(replace(study, name=longer_name(study.name, steps), models=runs, repeated_over_seeds=()))
    return studies


def longer_name(text: str, steps: int = LONGER) -> str:
    """The name of the longer study of a text."""
    return f"{text}, {steps:,} updates"


def local_studies(scale: str) -> StreamStudies:
    """The same stack with full attention, local attention and convolutions."""
    models: dict[str, dict[str, object]] = {
        XL: {},
        "Local-XL, 32": {"mixers": ("local",), "spans": (32,)},
        "Local-XL, 16 to 64": {"mixers": ("local",), "spans": (16, 32, 64, 64)},
        "LightConv": {"mixers": ("lightconv",), "spans": (3, 7, 15, 31), "norm": "pre"},
        "DynamicConv": {"mixers": ("dynamicconv",), "spans": (3, 7, 15, 31), "norm": "pre"},
    }
    return _studies(scale, ["text8"], models, {})


def _studies(
    scale: str, texts: Iterable[str], models: Mapping[str, dict[str, object]], modes: Mapping[str, Sequence[EvaluationMode]]
) -> StreamStudies:
    """Models that differ in some settings of one base, on the texts that are on this machine; the first is the baseline."""
    runs, missing = {}, []
    if scale == "smoke":  # docstrings, which every machine has
        tiny = TransformerXLConfig(width=32, layers=2, heads=2, feedforward=64, memory=16)
        training = TrainingConfig(steps=60, batch_size=16, learning_rate=5e-3, evaluate_every=60)
        runs["docstrings"] = stream_run(DataConfig(), TokenizerConfig("character"), tiny, training, segment=16), "character"
    elif scale == "paper":
        runs["enwik8"] = _enwik8(), "byte"
    else:
        for name in texts:
            data, unit = TEXTS[name]
            if Path(data.source).exists():
                tokenizer = TokenizerConfig("byte" if unit == "byte" else "character")
                runs[name] = stream_run(data, tokenizer, SMALL, TRAINING, segment=SEGMENT), unit
            else:
                missing.append(missing_message(data.source))
    studies = [
        StreamStudy(
            name=name, unit=unit, baseline=next(iter(models)), evaluation_modes=modes,
            models={model: replace(run, base=replace(run.base, **change)) for model, change in models.items()},
            test_limit=8_000 if scale == "smoke" else None,
        )
        for name, (run, unit) in runs.items()
    ]  # fmt: skip
    return studies, missing


def _enwik8() -> TrainRun:
    """12 layers, 41 million parameters, on the whole enwik8 (a file of 100,000,000 bytes in the working folder)."""
    base = TransformerXLConfig(width=512, layers=12, heads=8, head_width=64, feedforward=2048, dropout=0.1, memory=512)
    training = replace(PAPER_TRAINING, steps=400_000, batch_size=22)
    return stream_run(DataConfig("enwik8", split="raw"), TokenizerConfig("byte"), base, training, segment=512)


def _published() -> list[StreamStudy]:
    """The settings of the released scripts; for PTB, of which none was released, those of the thesis."""
    small = _enwik8()
    large = TransformerXLConfig(
        width=1024, layers=24, heads=8, head_width=128, feedforward=3072, dropout=0.15, attention_dropout=0.15, memory=768
    )
    training = replace(PAPER_TRAINING, steps=400_000, batch_size=64, warmup_steps=4_000)
    enwik8 = {"12 layers": small, "24 layers": stream_run(small.data, small.tokenizer, large, training, segment=768)}
    text8 = {
        name: replace(run, data=DataConfig("text8", split="raw"), tokenizer=TokenizerConfig("character"))
        for name, run in enwik8.items()
    }
    modes = [_same_length(2_100, clamp_len=820), _same_length(3_800, clamp_len=1_000)]
    ptb = TransformerXLConfig(
        width=380, layers=16, heads=10, head_width=38, feedforward=900, dropout=0.45, memory=70, attention_dropout=0.2,
        variational=True,
    )  # fmt: skip
    averaged = replace(PAPER_TRAINING, steps=60_000, batch_size=20, swa_start=0.7)
    words = TokenizerConfig("word", 10_000)
    penn_treebank = {XL: stream_run(PENN_TREEBANK, words, ptb, averaged, segment=70, segments="random")}
    return [
        _study("enwik8", "byte", enwik8, modes),
        _study("text8", "character", text8, modes),
        _study("WikiText-103", "word", _wikitext(), [_same_length(640, clamp_len=400), _same_length(1_600, clamp_len=1_000)]),
        _study("One Billion Word", "word", _billion_words(), [_same_length(128), _same_length(128)]),
        _study("Penn Treebank", "word", penn_treebank, [EvaluationMode(140)]),
    ]


def _same_length(mem_len: int, clamp_len: int | None = None) -> EvaluationMode:
    """The evaluation of a released script, all of which have `same_length`."""
    return EvaluationMode(published_attention_span(mem_len), clamp=clamp_len)


def _study(name: str, unit: str, models: Mapping[str, TrainRun], modes: Sequence[EvaluationMode]) -> StreamStudy:
    """Models that are compared with the first, each with one further mode of evaluation."""
    by_model = {model: [mode] for model, mode in zip(models, modes, strict=True)}
    return StreamStudy(name=name, unit=unit, models=models, baseline=next(iter(models)), evaluation_modes=by_model)


def _wikitext() -> dict[str, TrainRun]:
    data, words = wikitext(103), TokenizerConfig("word", vocab_size=267_735)
    large = TransformerXLConfig(
        width=1024, layers=18, heads=16, head_width=64, feedforward=4096, dropout=0.2, memory=384,
        attention_dropout=0.2, cutoffs=(20_000, 40_000, 200_000), div_value=4, untied_biases=True,
    )  # fmt: skip
    short = replace(PAPER_TRAINING, steps=200_000, batch_size=60)
    long = replace(PAPER_TRAINING, steps=4_000_000, batch_size=128, warmup_steps=16_000)
    return {
        "16 layers": stream_run(data, words, WIKITEXT_XL, short, segment=150),
        "18 layers": stream_run(data, words, large, long, segment=384),
    }


def _billion_words() -> dict[str, TrainRun]:
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
    return {
        "18 layers": stream_run(data, words, base, short, segment=32),
        "24 layers": stream_run(data, words, large, long, segment=32),
    }
