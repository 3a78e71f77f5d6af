"""Blind comparison of two models: people choose between pairs of texts, and the votes are kept in a folder.

    pairs.jsonl   written once: id, prompt, the texts of A and B, and the expected choice if the pair is an attention check
    votes.jsonl   one line per vote: pair, rater, choice, model on the left, time

Sides and order of the pairs follow from the seed and the rater's name, so a restarted server continues where each rater was. A
vote is synced to disk before the next pair is shown; a truncated line was never confirmed and is dropped. An attention check
pairs a text with the same words in another order. Estimates from the votes: `esscher.estimators.preference`.
"""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.config import from_dict
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.reading import describing, read_json_lines
from esscher.core.space import prompts_of
from esscher.core.storage import write_file
from esscher.estimators.preference import Choice, Vote, attention, preference
from esscher.explorer import markup
from esscher.explorer.config import CompareConfig, load_gradio
from esscher.explorer.page_app import launch
from esscher.reports.report import Report
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.sir import AdaptiveSIR
from esscher.workflow.model import load
from esscher.workflow.sample import evidence_agrees

if TYPE_CHECKING:
    from gradio import Blocks

PAIRS, VOTES = "pairs.jsonl", "votes.jsonl"
PAIRS_PER_CHECK = 10  # pairs per attention check
MAX_NAME, MAX_RATERS = 64, 1_000  # characters of a rater's name, and raters of a comparison
OTHER = {"a": "b", "b": "a"}
QUESTION = "Which text is the more reasonable continuation? Do not mind if one or both end abruptly."


@dataclass(frozen=True)
class Pair:
    """Two texts after a prompt; `expected` is the right choice of an attention check."""

    id: str
    prompt: str
    a: str
    b: str
    expected: Choice | None = None

    def side(self, name: str) -> str:
        return self.a if name == "a" else self.b


def make_pairs(prompts: Sequence[str], a: Sequence[str], b: Sequence[str], *, seed: int) -> list[Pair]:
    """Pairs of different texts, and one attention check for every ten of them, at least one."""
    rows = [row for row in zip(prompts, a, b, strict=True) if row[1].strip() != row[2].strip()]
    if not rows:
        raise ValueError(f"All {len(prompts)} pairs of texts are equal, so there is nothing to judge. Nothing was served.")
    pairs = [Pair(f"p{number}", *row) for number, row in enumerate(rows)]
    checks = []
    for number, pair in enumerate(pairs[::PAIRS_PER_CHECK]):
        shuffled = _shuffle_words(pair.a, SeededRng(seed).stream("check", number))
        if shuffled is not None:
            checks.append(Pair(f"c{number}", pair.prompt, pair.a, shuffled, "a"))
    return [*pairs, *checks]


def _shuffle_words(text: str, rng: SeededRng) -> str | None:
    """The words in random order, or the letters of a text of up to three words; None if that never changes the text."""
    words, gap = (text.split(), " ") if len(text.split()) > 3 else (list(text), "")
    orders = (rng.stream(attempt).permutation(len(words)).tolist() for attempt in range(8))
    shuffled = (gap.join(words[index] for index in order) for order in orders)
    return next((candidate for candidate in shuffled if candidate != text), None)


class ComparisonStore:
    """The pairs and votes of one comparison, in a folder."""

    def __init__(self, folder: Path, *, seed: int = 0):
        self.folder, self.seed, self._lock = folder, seed, threading.Lock()
        rows = read_json_lines(folder / PAIRS)
        with describing(folder / PAIRS, "pairs"):
            self.pairs = {pair.id: pair for pair in (from_dict(Pair, row) for row in rows)}
        votes = folder / VOTES
        if votes.is_file():
            complete, _, truncated = votes.read_bytes().rpartition(b"\n")
            if truncated:
                write_file(votes, complete + b"\n" if complete else b"")

    @classmethod
    def create_or_resume(cls, folder: Path, pairs: Sequence[Pair], *, seed: int) -> "ComparisonStore":
        """A new comparison, or the one in the folder if its pairs are the same; other pairs are refused."""
        written = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs).encode()
        file = folder / PAIRS
        if file.is_file() and file.read_bytes() != written:
            raise ValueError(
                f"{file} holds other pairs than these. Nothing was served and no vote was lost; to continue, name the same "
                f"models, prompts and seed; otherwise choose another --out."
            )
        write_file(file, written)
        return cls(folder, seed=seed)

    @property
    def checks(self) -> dict[str, Choice]:
        """The expected choices of the attention checks, by pair."""
        return {pair.id: pair.expected for pair in self.pairs.values() if pair.expected is not None}

    def votes(self) -> list[Vote]:
        file = self.folder / VOTES
        entries = read_json_lines(file) if file.is_file() else []
        with describing(file, "votes"):
            return [Vote(entry["pair"], entry["rater"], entry["choice"]) for entry in entries]

    def check_rater(self, rater: str) -> None:
        """Refuse a name that is empty, too long or not printable, and a new rater when there are `MAX_RATERS`."""
        if not rater.strip():
            raise ValueError("A vote needs the rater's name. Nothing was recorded.")
        if len(rater) > MAX_NAME or not rater.isprintable():
            raise ValueError(f"A name has at most {MAX_NAME} printable characters, not {len(rater)}. Nothing was recorded.")
        raters = {vote.rater for vote in self.votes()}
        if rater not in raters and len(raters) >= MAX_RATERS:
            raise ValueError(f"There are {len(raters):,} raters already, the most accepted. Nothing was recorded.")

    def next(self, rater: str) -> Pair | None:
        """The next pair in this rater's order; None when all are judged."""
        self.check_rater(rater)
        done = {vote.pair for vote in self.votes() if vote.rater == rater}
        names = list(self.pairs)
        order = SeededRng(self.seed).stream("order", rater).permutation(len(names)).tolist()
        return next((self.pairs[names[index]] for index in order if names[index] not in done), None)

    def left_model(self, rater: str, pair: Pair) -> str:
        """The model ("a" or "b") whose text this rater sees on the left."""
        return "ab"[int(SeededRng(self.seed).stream("side", rater, pair.id).permutation(2)[0])]

    def vote(self, rater: str, pair: Pair, side: str) -> None:
        """Record "left", "right" or "equal", synced to disk on return; a second vote on the same pair is ignored."""
        self.check_rater(rater)
        left_model = self.left_model(rater, pair)
        choices = {"left": left_model, "right": OTHER[left_model], "equal": "equal"}
        if side not in choices:
            raise ValueError(f"No choice named {side!r}. Nothing was recorded; choose from: {', '.join(choices)}.")
        line = {"pair": pair.id, "rater": rater, "choice": choices[side], "left": left_model, "time": round(time.time(), 1)}
        with self._lock:
            if any(vote.pair == pair.id and vote.rater == rater for vote in self.votes()):
                return
            with (self.folder / VOTES).open("a", encoding="utf8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())


def build_comparison_page(store: ComparisonStore) -> "Blocks":
    """The page in gradio: it hides which model wrote what, and a rater who returns under the same name continues."""
    gr, handlers = load_gradio(), ComparisonHandlers(store)
    with gr.Blocks(title="Which is better?", analytics_enabled=False) as page:
        with gr.Row():
            rater = gr.Textbox(label="Your name", elem_id="rater", scale=3)
            begin = gr.Button("Begin or go on", variant="primary", elem_id="begin", scale=1)
        shown = gr.HTML(markup.render("waiting", QUESTION), elem_id="pair", padding=False)
        with gr.Row():
            buttons = {
                side: gr.Button(text, elem_id=f"vote-{side}", interactive=False)
                for side, text in (("left", "Left is better"), ("equal", "They are equal"), ("right", "Right is better"))
            }
        state = gr.State(None)  # the rater and the pair that is shown

        def update(html: str, current: tuple[str, str] | None) -> list[object]:
            return [html, current, *(gr.update(interactive=current is not None) for _ in buttons)]

        outputs = [shown, state, *buttons.values()]
        begin.click(lambda name: update(*handlers.show(name)), rater, outputs, api_name="begin")
        rater.submit(lambda name: update(*handlers.show(name)), rater, outputs, api_name="enter")
        for side, button in buttons.items():
            vote = lambda current, side=side: update(*handlers.vote(current, side))  # noqa: E731
            button.click(vote, state, outputs, api_name=side, concurrency_limit=None)
    return page


class ComparisonHandlers:
    """The callbacks of the page: each returns HTML, and the rater and pair that are shown, if any."""

    def __init__(self, store: ComparisonStore):
        self.store = store

    def show(self, name: str) -> tuple[str, tuple[str, str] | None]:
        rater = str(name or "").strip()
        if not rater:
            return markup.render("error", "Please type your name first."), None
        try:
            pair = self.store.next(rater)
        except ValueError as error:
            return markup.render("error", str(error)), None
        if pair is None:
            return markup.render("waiting", "All pairs are judged. Thank you."), None
        left_model = self.store.left_model(rater, pair)
        texts = pair.side(left_model), pair.side(OTHER[left_model])
        done = sum(vote.rater == rater for vote in self.store.votes())
        return markup.render("pair", QUESTION, pair.prompt, *texts, done + 1, len(self.store.pairs)), (rater, pair.id)

    def vote(self, current: tuple[str, str] | None, side: str) -> tuple[str, tuple[str, str] | None]:
        """Record the vote, then show the next pair."""
        if current is None:
            return markup.render("error", "There is no pair to judge; type your name and begin."), None
        rater, pair = current
        try:
            self.store.vote(rater, self.store.pairs[pair], side)
        except (ValueError, OSError) as error:
            return markup.render("error", f"The vote was not recorded: {error}"), current
        return self.show(rater)


def compare(settings: CompareConfig) -> Report | None:
    """Serve the comparison of two models to raters until Ctrl-C; or report the votes in the folder `settings.results`."""
    if settings.results is not None:
        return preference_report(settings.results, settings.confidence)
    assert settings.a is not None and settings.b is not None and settings.prompts is not None and settings.out is not None
    prompts = Path(settings.prompts).read_text(encoding="utf8").splitlines()
    a = _texts(settings.a, settings.energy_a, prompts, SeededRng(settings.seed).stream("compare", "a"), **settings.placement)
    b = _texts(settings.b, settings.energy_b, prompts, SeededRng(settings.seed).stream("compare", "b"), **settings.placement)
    pairs = make_pairs(prompts, a, b, seed=settings.seed)
    launch(build_comparison_page(ComparisonStore.create_or_resume(Path(settings.out), pairs, seed=settings.seed)), settings)
    return None


def _texts(side: str, energy: str | None, prompts: Sequence[str], rng: SeededRng, **placement: Any) -> list[str]:
    """A draw of the model after each prompt, or the lines of a file."""
    if Path(side).is_file():
        lines = Path(side).read_text(encoding="utf8").splitlines()
        if len(lines) != len(prompts):
            raise ValueError(f"{side} has {len(lines)} lines for {len(prompts)} prompts. Nothing was served; correct the file.")
        return lines
    model = load(side, energy, **placement)
    evidence = partial(evidence_agrees, energy=model.target.energy, stored=model.stored_estimates)
    sampler = AdaptiveSIR(evidence=evidence) if model.is_tilted else Ancestral()
    drawn = sampler(model.target, prompts_of(model.data.encode_prompts(prompts)), 1, rng=rng)
    few = int((~drawn.info["large_enough"]).sum()) if model.is_tilted else 0
    if few:
        current_progress().say(
            f"The texts of {model.name} after {few} of {len(prompts)} prompts are unreliable: their candidates are too few, or "
            f"lack what is known of the tilted model."
        )
    return model.tokenizer.decode(drawn.x.points())


def preference_report(folder: str | Path, confidence: float = 0.95) -> Report:
    """The preference rate in the votes of a folder, and how far the raters agree; those who failed the checks do not count."""
    store = ComparisonStore(Path(folder))
    votes, checks = store.votes(), store.checks
    result = preference(votes, checks, confidence=confidence)
    facts: dict[str, Any] = {
        "folder": folder,
        "prefer_b": result.rate,
        "p_value": result.p_value,
        "pairs_decided": result.pairs,
        "pairs_undecided": result.undecided,
        "votes_for_a": result.votes.get("a", 0),
        "votes_for_b": result.votes.get("b", 0),
        "votes_for_neither": result.votes.get("equal", 0),
        "agreement_of_raters": result.agreement,
        "krippendorff_alpha": result.alpha,
    }
    right = attention(votes, checks)
    raters = [
        {
            "rater": name,
            "votes": sum(vote.rater == name for vote in votes),
            "checks right": right.get(name),
            "counted": name not in result.left_out,
        }
        for name in dict.fromkeys(vote.rater for vote in votes)
    ]
    left_out = result.left_out.items()
    notes = [f"{name} answered {share:.0%} of the attention checks correctly and is left out." for name, share in left_out]
    return Report("esscher compare", facts, {"raters": raters}, notes)
