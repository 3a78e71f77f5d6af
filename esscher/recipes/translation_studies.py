"""What the recipe on translation studies, by scale: which pairs, which systems, and how they are decoded.

`small` is French to English from Tatoeba (manythings.org): of each French sentence the first translation, and of these the
sentences whose hash says so, about 21,000. `smoke` turns numbers into words, pairs that every machine has.
"""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from esscher.recipes.eforcing_studies import FORCED, PLAIN, SCHEDULED, SMOOTH
from esscher.recipes.sources import DATA, not_here
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.settings.translate import DecodingConfig
from esscher.storage import write_file

TATOEBA = DATA / "manythings/fra-eng.zip"
SHARE = 0.13  # of the French sentences
BEGIN, SMOOTHING = 4, 0.1
MAIN = (SMOOTH, f"{SMOOTH}, {FORCED}")
UNITS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
         "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@dataclass(frozen=True)
class Way:
    """How test sentences are decoded; `energy` as the command line names it."""

    decoding: DecodingConfig
    energy: str | None = None


@dataclass(frozen=True)
class TranslationStudy:
    """Pairs, and systems on them, compared with `against`; `bounds` are the lengths of sources that are told apart. The first
    seed is that of all systems, the others are those of `repeated` alone."""

    name: str
    systems: Mapping[str, TrainRun]
    ways: Mapping[str, Way]
    against: str
    repeated: tuple[str, ...] = ()
    bounds: tuple[int, ...] = (25, 50)
    most: int | None = None  # test pairs, the first ones; None is all

    def of_seed(self, seed: int) -> tuple[str, ...]:
        """The systems that are trained with a seed."""
        return self.repeated if seed else tuple(self.systems)


GREEDY, BEAM = Way(DecodingConfig("greedy")), Way(DecodingConfig("beam"))
USUAL = {"greedy": GREEDY, "beam of 5": BEAM}
RESAMPLED = {
    "one draw": Way(DecodingConfig("sample")),
    **{f"one of {count} draws by the own energy": Way(DecodingConfig("sample", pool=count), "own") for count in (5, 10)},
}


def translation_studies(scale: str, out: Path) -> tuple[list[TranslationStudy], list[str]]:
    """The studies of a scale, and what is left out because its pairs are not here."""
    if scale == "smoke":
        return [_smoke(out)], []
    if scale == "paper":
        return _published()
    if not TATOEBA.exists():
        return [], [not_here(TATOEBA)]
    pairs = out / "french-english.tsv"
    if not pairs.exists():
        write_file(pairs, _lines(french_english(TATOEBA)))
    run = TrainRun(
        "",
        DataConfig(str(pairs), target="2", column="1", held_out=0.05),
        TokenizerConfig("bpe", 2_000),
        LengthConfig(40),
        BaseChoice("encoder-decoder", width=128, layers=2, heads=4, feedforward=512, dropout=0.1),
        TrainingConfig(
            epochs=12, batch_tokens=4_000, learning_rate=3e-3, warmup=200, schedule="inverse-sqrt", average=0.7, log_every=50
        ),
    )  # fmt: skip
    main = TranslationStudy(
        "French to English",
        _systems(run, ObjectiveConfig("eforcing", after_epochs=BEGIN, weight=0.1)),
        {**USUAL, **RESAMPLED},
        SMOOTH,
        MAIN,
        (6, 10),
    )
    return [main, _heads(run)], []


def _systems(run: TrainRun, forcing: ObjectiveConfig) -> dict[str, TrainRun]:
    """Likelihood, with label smoothing, and with that and each objective of own tokens."""
    smooth = replace(run, training=replace(run.training, label_smoothing=SMOOTHING))
    scheduled = ObjectiveConfig("scheduled-sampling", forcing.after_epochs, forcing.after_steps)
    return {
        PLAIN: run,
        SMOOTH: smooth,
        f"{SMOOTH}, {SCHEDULED}": replace(smooth, objective=scheduled),
        f"{SMOOTH}, {FORCED}": replace(smooth, objective=forcing),
    }


def _heads(run: TrainRun) -> TranslationStudy:
    """The decoder's last part: a softmax, a mixture of contexts, one of softmaxes, of about one size. By likelihood alone: a
    label that is smoothed needs every logit of every component, five times the work."""
    plain = replace(run, training=replace(run.training, epochs=10))
    lstm = BaseChoice("attentive-lstm", width=160, layers=1, embedding=160, dropout=0.2)
    bases = {
        "softmax": lstm,
        "MoC": replace(lstm, output="contexts", components=5, width=146, embedding=146),
        "MoS": replace(lstm, output="softmaxes", components=5, width=146, embedding=146),
    }
    systems = {name: replace(plain, base=base) for name, base in bases.items()}
    return TranslationStudy("French to English, heads of an LSTM", systems, USUAL, "softmax", bounds=(6, 10))


def _smoke(out: Path) -> TranslationStudy:
    pairs = out / "numbers.tsv"
    if not pairs.exists():
        write_file(pairs, _lines([(" ".join(str(number)), spelt(number)) for number in range(1, 1_000)]))
    base = BaseChoice("encoder-decoder", width=16, layers=1, heads=2, feedforward=32, dropout=0.0)
    training = TrainingConfig(steps=30, batch_tokens=800, learning_rate=1e-2, evaluate_every=15, log_every=10)
    data = DataConfig(str(pairs), target="2", column="1", held_out=0.05)
    run = TrainRun("", data, TokenizerConfig("word", 60), LengthConfig(12), base, training)
    forcing = ObjectiveConfig("eforcing", after_steps=15)
    return TranslationStudy("numbers to words", _systems(run, forcing), USUAL, SMOOTH, MAIN, (2, 3), 20)


def _published() -> tuple[list[TranslationStudy], list[str]]:
    """Six directions of IWSLT14 and WMT16, with the published sizes."""
    base = BaseChoice("encoder-decoder", width=512, layers=6, heads=4, feedforward=1_024, dropout=0.3)
    training = TrainingConfig(
        epochs=200, batch_tokens=4_096, optimiser="adam", learning_rate=5e-4, warmup=4_000, schedule="inverse-sqrt", clip=None,
        patience=20,
    )  # fmt: skip
    forcing = ObjectiveConfig("eforcing", after_epochs=15)
    studies, left_out = [], []
    for source, target in [(one, "en") for one in ("de", "es", "it")] + [("en", one) for one in ("de", "es", "it")]:
        data = _iwslt(source, target)
        if data is None:
            place = DATA / "iwslt14" / f"{target if source == 'en' else source}-en"
            left_out.append(
                f"{source} to {target}: {place} holds no train, valid and test files as fairseq's script makes them."
            )
            continue
        run = TrainRun("", data, TokenizerConfig("bpe", 10_000), LengthConfig(175), base, training)
        studies.append(
            TranslationStudy(f"IWSLT14 {source} to {target}", _systems(run, forcing), {**USUAL, **RESAMPLED}, SMOOTH, MAIN)
        )
    name = "wmt/wmt16:de-en"
    wmt = DataConfig(name, f"{name}:validation", f"{name}:test", column="en", target="de")
    large = BaseChoice("encoder-decoder", width=512, layers=6, heads=8, feedforward=2_048, dropout=0.1)
    run = TrainRun("", wmt, TokenizerConfig("bpe", 32_000), LengthConfig(128), large, replace(training, epochs=20))
    return [*studies, TranslationStudy("WMT16 en to de", _systems(run, forcing), USUAL, SMOOTH, MAIN)], left_out


def _iwslt(source: str, target: str) -> DataConfig | None:
    """Files as fairseq's prepare-iwslt14.sh leaves them; for German also the copy on the hub."""
    other = target if source == "en" else source
    folder = DATA / "iwslt14" / f"{other}-en"
    if (folder / f"train.{source}").exists():
        files = [str(folder / f"{part}.{source}") for part in ("train", "valid", "test")]
        return DataConfig(files[0], files[1], files[2], target=target)
    if other == "de":
        name = "bbaaaa/iwslt14-de-en"
        return DataConfig(name, f"{name}::validation", f"{name}::test", column=source, target=target)
    return None


def french_english(archive: Path) -> list[tuple[str, str]]:
    """The subset: of each French sentence the first translation, if the hash of the sentence lies in the share."""
    with zipfile.ZipFile(archive) as whole:
        rows = [line.split("\t")[:2] for line in io.TextIOWrapper(whole.open("fra.txt"), encoding="utf8")]
    first: dict[str, str] = {}
    for english, french in rows:
        first.setdefault(french, english)
    return [(french, english) for french, english in first.items() if _chosen(french)]


def spelt(number: int) -> str:
    """A number below 1,000 in English words."""
    hundreds, rest = divmod(number, 100)
    words = [UNITS[hundreds], "hundred"] if hundreds else []
    words += [UNITS[rest]] if rest < 20 else [TENS[rest // 10], UNITS[rest % 10]]
    return " ".join(word for word in words if word)


def _chosen(text: str) -> bool:
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"subset").digest()
    return int.from_bytes(digest, "big") / 2**64 < SHARE


def _lines(pairs: Sequence[tuple[str, str]]) -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
