"""Settings of the recipe on translation at each scale: sentence pairs, systems, and how they are decoded.

`small` is French to English from Tatoeba (manythings.org): the first translation of each French sentence, of a subset of about
21,000 sentences chosen by their hash. `smoke` translates numbers into words, pairs that every machine has.
"""

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from esscher.core.storage import write_file
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.splits import read_pair_splits
from esscher.data.translation_pairs import Pairs
from esscher.decoding.beam_search import BeamSearch, Greedy
from esscher.decoding.decoders import Decoder, RandomDraw
from esscher.networks.registry import NetworkConfig
from esscher.networks.seq2seq_config import AttentiveLstmConfig, EncoderDecoderConfig
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.papers.eforcing.language_studies import FORCED, PLAIN, SCHEDULED, SMOOTH
from esscher.papers.sources import DATA, missing_message
from esscher.papers.study import Study
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

TATOEBA = DATA / "manythings/fra-eng.zip"
SHARE = 0.13  # of the French sentences that are used
REPEATED_SYSTEMS = (SMOOTH, f"{SMOOTH}, {FORCED}")
UNITS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
         "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@dataclass(frozen=True)
class DecodingSetup:
    """How test sentences are decoded; `energy` is named as on the command line."""

    decoder: Decoder
    energy: str | None = None


@dataclass(frozen=True, kw_only=True)
class TranslationStudy(Study[TrainRun]):
    """Sentence pairs and systems that are compared with `baseline`."""

    decodings: Mapping[str, DecodingSetup]
    baseline: str = SMOOTH
    repeated_over_seeds: tuple[str, ...] | None = REPEATED_SYSTEMS
    length_bounds: tuple[int, ...] = (25, 50)  # source lengths, in words, that separate the groups of BLEU by length
    test_limit: int | None = None  # test pairs, the first ones; None is all

    @property
    def data(self) -> DataConfig:
        """The sentence pairs of all systems."""
        return next(iter(self.models.values())).data

    @cached_property
    def test(self) -> Pairs:
        """The test pairs."""
        test = read_pair_splits(self.data)[2]
        return replace(test, sources=test.sources[: self.test_limit], targets=test.targets[: self.test_limit])


STANDARD_DECODINGS = {"greedy": DecodingSetup(Greedy()), "beam of 5": DecodingSetup(BeamSearch())}
ALL_DECODINGS = {
    **STANDARD_DECODINGS,
    "one draw": DecodingSetup(RandomDraw()),
    **{f"one of {count} draws by the own energy": DecodingSetup(RandomDraw(num_candidates=count), "self") for count in (5, 10)},
}


def translation_studies(scale: str, out: Path) -> tuple[list[TranslationStudy], list[str]]:
    """The studies of a scale, and a message for each data set that was not found."""
    if scale == "smoke":
        return [_smoke(out)], []
    if scale == "paper":
        return _published()
    if not TATOEBA.exists():
        return [], [missing_message(TATOEBA)]
    data = _write_pairs(out / "french-english.tsv", lambda: french_english(TATOEBA))
    base = EncoderDecoderConfig(width=128, layers=2, heads=4, feedforward=512, dropout=0.1)
    training = TrainingConfig(
        epochs=12, batch_tokens=4_000, learning_rate=3e-3, warmup_steps=200, schedule="inverse-sqrt", swa_start=0.7,
        log_every=50,
    )  # fmt: skip
    run = _run(data, TokenizerConfig("bpe", 2_000), 40, base, training)
    systems = _systems(run, EForcingConfig(after_epochs=4, weight=0.1))
    main = TranslationStudy(name="French to English", models=systems, decodings=ALL_DECODINGS, length_bounds=(6, 10))
    return [main, _heads(run)], []


def _run(
    data: DataConfig, tokenizer: TokenizerConfig, max_length: int, base: NetworkConfig, training: TrainingConfig
) -> TrainRun:
    return TrainRun("", data=data, tokenizer=tokenizer, length=LengthConfig(max_length), base=base, training=training)


def _write_pairs(file: Path, pairs: Callable[[], Iterable[tuple[str, str]]]) -> DataConfig:
    """Pairs in the first two columns of a file, which is written if it does not exist yet."""
    if not file.exists():
        write_file(file, "".join(f"{source}\t{target}\n" for source, target in pairs()).encode())
    return DataConfig(str(file), target="2", column="1", held_out=0.05)


def _systems(run: TrainRun, forcing: EForcingConfig) -> dict[str, TrainRun]:
    """Likelihood, label smoothing, and label smoothing with each objective that trains on the model's own tokens."""
    smooth = replace(run, training=replace(run.training, label_smoothing=0.1))
    scheduled = ScheduledSamplingConfig(after_epochs=forcing.after_epochs, after_steps=forcing.after_steps)
    return {
        PLAIN: run,
        SMOOTH: smooth,
        f"{SMOOTH}, {SCHEDULED}": replace(smooth, objective=scheduled),
        f"{SMOOTH}, {FORCED}": replace(smooth, objective=forcing),
    }


def _heads(run: TrainRun) -> TranslationStudy:
    """A decoder with a softmax, a mixture of contexts and one of softmaxes, of about one size, trained by likelihood alone:
    label smoothing needs every logit of every component, five times the work."""
    plain = replace(run, training=replace(run.training, epochs=10))
    lstm = AttentiveLstmConfig(width=160, layers=1, embedding=160, dropout=0.2)
    bases = {
        "softmax": lstm,
        "MoC": replace(lstm, output="moc", components=5, width=146, embedding=146),
        "MoS": replace(lstm, output="mos", components=5, width=146, embedding=146),
    }
    systems = {name: replace(plain, base=base) for name, base in bases.items()}
    return TranslationStudy(
        name="French to English, heads of an LSTM", models=systems, decodings=STANDARD_DECODINGS, baseline="softmax",
        repeated_over_seeds=(), length_bounds=(6, 10),
    )  # fmt: skip


def _smoke(out: Path) -> TranslationStudy:
    pairs = [(" ".join(str(number)), number_words(number)) for number in range(1, 1_000)]
    data = _write_pairs(out / "numbers.tsv", lambda: pairs)
    base = EncoderDecoderConfig(width=16, layers=1, heads=2, feedforward=32, dropout=0.0)
    training = TrainingConfig(steps=30, batch_tokens=800, learning_rate=1e-2, evaluate_every=15, log_every=10)
    run = _run(data, TokenizerConfig("word", 60), 12, base, training)
    systems = _systems(run, EForcingConfig(after_steps=15))
    return TranslationStudy(
        name="numbers to words", models=systems, decodings=STANDARD_DECODINGS, length_bounds=(2, 3), test_limit=20
    )


def _published() -> tuple[list[TranslationStudy], list[str]]:
    """Six directions of IWSLT14 and WMT16, with the published sizes."""
    base = EncoderDecoderConfig(width=512, layers=6, heads=4, feedforward=1_024, dropout=0.3)
    training = TrainingConfig(
        epochs=200, batch_tokens=4_096, optimizer="adam", learning_rate=5e-4, warmup_steps=4_000, schedule="inverse-sqrt",
        max_grad_norm=None, patience=20,
    )  # fmt: skip
    forcing = EForcingConfig(after_epochs=15)
    studies, missing, others = [], [], ("de", "es", "it")
    for source, target in [*((other, "en") for other in others), *(("en", other) for other in others)]:
        folder = DATA / "iwslt14" / f"{target if source == 'en' else source}-en"
        data = _iwslt(folder, source, target)
        if data is None:
            missing.append(f"{source} to {target}: {folder} holds no train, valid and test files of fairseq's script.")
            continue
        systems = _systems(_run(data, TokenizerConfig("bpe", 10_000), 175, base, training), forcing)
        studies.append(TranslationStudy(name=f"IWSLT14 {source} to {target}", models=systems, decodings=ALL_DECODINGS))
    name = "wmt/wmt16:de-en"
    wmt = DataConfig(name, validation=f"{name}:validation", test=f"{name}:test", column="en", target="de")
    large = EncoderDecoderConfig(width=512, layers=6, heads=8, feedforward=2_048, dropout=0.1)
    run = _run(wmt, TokenizerConfig("bpe", 32_000), 128, large, replace(training, epochs=20))
    studies.append(TranslationStudy(name="WMT16 en to de", models=_systems(run, forcing), decodings=STANDARD_DECODINGS))
    return studies, missing


def _iwslt(folder: Path, source: str, target: str) -> DataConfig | None:
    """Files as fairseq's prepare-iwslt14.sh leaves them; for German also the copy on the hub."""
    if (folder / f"train.{source}").exists():
        files = [str(folder / f"{part}.{source}") for part in ("train", "valid", "test")]
        return DataConfig(files[0], validation=files[1], test=files[2], target=target)
    if "de" in (source, target):
        name = "bbaaaa/iwslt14-de-en"
        return DataConfig(name, validation=f"{name}::validation", test=f"{name}::test", column=source, target=target)
    return None


def french_english(archive: Path) -> list[tuple[str, str]]:
    """The first translation of each French sentence of a subset, whose hash is below `SHARE`."""
    with zipfile.ZipFile(archive) as whole:
        rows = [line.split("\t")[:2] for line in io.TextIOWrapper(whole.open("fra.txt"), encoding="utf8")]
    first: dict[str, str] = {}
    for english, french in rows:
        first.setdefault(french, english)

    def hash_of(text: str) -> float:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=b"subset").digest(), "big") / 2**64

    return [(french, english) for french, english in first.items() if hash_of(french) < SHARE]


def number_words(number: int) -> str:
    """A number below 1,000 in English words."""
    hundreds, rest = divmod(number, 100)
    words = [UNITS[hundreds], "hundred"] if hundreds else []
    words += [UNITS[rest]] if rest < 20 else [TENS[rest // 10], UNITS[rest % 10]]
    return " ".join(word for word in words if word)
