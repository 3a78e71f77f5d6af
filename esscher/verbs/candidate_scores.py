"""Scores of a base and of an energy for the candidates of n-best lists, kept in a file so that they are computed once.

    log_base     log a(x) of the whole text with its end symbol, after an empty prompt
    log_weight   -E(x) of the same

A list that is done is a line of the file, in the format of `esscher.data.nbest`; a run that was stopped goes on after the last
whole line. Each score has the digest of the model that gave it, so that it is used again for the same model and no other: a
scored file may itself be given as the lists, to add an energy without running the base again.

A candidate is read whole, however long: longest points are a matter of sampling, not of scoring.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from esscher.cut import Cut
from esscher.data.nbest import Candidate, NBest, read_nbest
from esscher.data.text import text_points
from esscher.energies.content import content_digest
from esscher.energies.own_level import named_own
from esscher.energies.saved import load_energy
from esscher.hub import read_config
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences
from esscher.storage import saving_failed
from esscher.verbs.models import Model, load_model

LOG_BASE, LOG_WEIGHT = "log_base", "log_weight"
TOGETHER = 256  # candidates that are sorted by length, scored and written together
TOKENS = 4096  # of a pass, padding included
PAUSE = 10.0  # seconds between two lines


def score_candidates(
    lists: Sequence[NBest],
    base: str | Path,
    energy: str | Path | None = None,
    *,
    eos: str | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[NBest, ...]:
    """The lists with the scores of the models in these folders; what is in the lists, or in `out`, is not computed again."""
    cut = Cut(eos=eos) if energy is None else Cut(eos=eos).over(load_energy(energy).cut)
    wanted = _digests(Path(base), energy, cut)
    file = None if out is None else Path(out)
    kept = {} if file is None else _kept(file, lists, wanted)
    done = {one.id: kept.get(one.id, one) for one in lists}
    for shard in _shards([one for one in lists if one.id not in kept and not _lacking(one, wanted)]):
        _append(file, shard)
    lacking = [one for one in lists if one.id not in kept and _lacking(one, wanted)]
    if lacking:
        model = load_model(base, energy, cut)
        count, started, spoken = 0, time.monotonic(), time.monotonic()
        for shard in _shards(lacking):
            scored = _scored(shard, model, wanted)
            _append(file, scored)
            done |= {one.id: one for one in scored}
            count, now = count + len(shard), time.monotonic()
            if now - spoken > PAUSE:
                spoken, left = now, (now - started) / count * (len(lacking) - count)
                say(f"scored {count:,} of {len(lacking):,} lists  {left:,.0f} s left")
    return tuple(done[one.id] for one in lists)


def _digests(base: Path, energy: str | Path | None, cut: Cut) -> dict[str, str]:
    """The name of the model behind each score; the end symbol is part of what a base says."""
    read_config(base)  # a folder that is none is told here
    found = {LOG_BASE: f"{content_digest(base)} {cut.eos or 'own'}"}
    if energy is None:
        return found
    return {**found, LOG_WEIGHT: f"own {found[LOG_BASE]}" if named_own(energy) else content_digest(energy)}


def _lacking(one: NBest, wanted: Mapping[str, str]) -> list[str]:
    return [name for name, digest in wanted.items() if name not in one.names or one.scored_by.get(name) != digest]


def _kept(file: Path, lists: Sequence[NBest], wanted: Mapping[str, str]) -> dict[str, NBest]:
    """The lists that the file has already; half a line at its end is dropped, other models or candidates are refused."""
    if file.suffix == ".gz":
        raise ValueError(
            f"Scores are kept as plain text, so that they can be added to; name {file.stem} instead of {file.name}."
        )
    if not file.is_file():
        return {}
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)
    if whole == 0:
        return {}
    asked = {one.id: one for one in lists}
    kept = {one.id: one for one in read_nbest(file)}
    for name, one in kept.items():
        same = name in asked and asked[name].texts == one.texts
        if not same or _lacking(one, wanted) or (LOG_WEIGHT in one.names) != (LOG_WEIGHT in wanted):
            what = "scores of other models" if same else "other candidates"
            raise ValueError(
                f"{file} holds {what}: list {name!r} differs. Nothing was scored or changed; choose another --out. To add an "
                f"energy to scores that exist, give {file} as the lists."
            )
    return kept


def _shards(lists: Sequence[NBest]) -> list[list[NBest]]:
    shards: list[list[NBest]] = []
    room = 0
    for one in lists:
        if room < len(one.candidates) or not shards:
            shards.append([])
            room = TOGETHER
        shards[-1].append(one)
        room -= len(one.candidates)
    return shards


def _scored(lists: Sequence[NBest], model: Model, wanted: Mapping[str, str]) -> list[NBest]:
    """The lists with every wanted score; equal texts are scored once."""
    scorers = {LOG_BASE: lambda x: log_prob(model.base, x), LOG_WEIGHT: lambda x: log_weight(model.target, x)}
    for name, digest in wanted.items():
        texts = list(dict.fromkeys(text for one in lists if name in _lacking(one, wanted) for text in one.texts))
        if texts:
            found = dict(zip(texts, _by_length(scorers[name], texts, model), strict=True))
            lists = [_with(one, name, found, digest) if name in _lacking(one, wanted) else one for one in lists]
    return list(lists)


def _with(one: NBest, name: str, found: Mapping[str, float], digest: str) -> NBest:
    candidates = tuple(Candidate(each.text, {**each.scores, name: found[each.text]}) for each in one.candidates)
    return replace(one, candidates=candidates, scored_by={**one.scored_by, name: digest})


def _by_length(score: Callable[[Sequences], Tensor], texts: Sequence[str], model: Model) -> list[float]:
    """A score for each text; texts of like length share a pass."""
    x = text_points(texts, model.tokenizer, max_length=sys.maxsize).x.to(next(model.base.parameters()).device)
    order = x.lengths.argsort()
    found = torch.zeros(len(x), dtype=torch.float64)
    first = 0
    while first < len(x):
        rows = max(1, TOKENS // int(x.lengths[order[min(first + 31, len(x) - 1)]]))
        index = order[first : first + rows]
        width = int(x.stop[index].max())
        found[index.cpu()] = score(Sequences(x.tokens[index, :width], x.start[index], x.stop[index]))
        first += rows
    if not bool(found.isfinite().all()):
        wrong = int((~found.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"The model gives {texts[wrong][:60]!r} the score {float(found[wrong])}, which no weight can balance. The lists "
            f"scored before are kept; leave such candidates out, or mend the energy."
        )
    return found.tolist()


def _append(file: Path | None, lists: Sequence[NBest]) -> None:
    """Lines at the end of the file, on the disk before it goes on."""
    if file is None or not lists:
        return
    content = "".join(one.to_json() + "\n" for one in lists).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise saving_failed(file, error, len(content)) from error
