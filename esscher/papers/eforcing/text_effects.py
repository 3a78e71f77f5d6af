"""What objectives save of likelihood's bits on texts, over seeds, and the verdicts: one for each text and model, and one for
each objective over all texts."""

from collections.abc import Sequence

from esscher.core.estimate import Estimate
from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing.laboratory_tables import conclusion, verdict
from esscher.papers.study import Row, Rows, means_over_seeds
from esscher.workflow.config.train import TrainRun

PLAIN, FORCED = "likelihood", "E-Forcing"
ONCE = f"{FORCED}, tokens counted once"
GROUP = ("text", "model")


def form_of(run: TrainRun) -> str | None:
    """The form of E-Forcing that a run has, as published or with tokens counted once; None: it has another objective."""
    if not isinstance(run.objective, EForcingConfig):
        return None
    return FORCED if run.objective.counts == "again" else ONCE


def strength_of(run: TrainRun) -> float | None:
    """The sum of E-Forcing's weights over infinitely many positions; None of another objective."""
    objective = run.objective
    if not isinstance(objective, EForcingConfig) or objective.decay == 1:
        return None
    return round(objective.weight / (1 - objective.decay), 6)


def effects(rows: Rows) -> list[Row]:
    """For each text and model what it saves over seeds, with the verdict; a single seed has no verdict.

    `saved` is bits per token of the test text with the weights of the lowest validation loss; `rise saved` is how many nats the
    validation loss rises less afterwards; `of likelihood` is in how many seeds the lowest loss came before E-Forcing began."""
    likelihood = {(row["text"], row["seed"]): row for row in rows if row["model"] == PLAIN}
    compared = []
    for row in rows:
        plain = likelihood.get((row["text"], row["seed"]))
        if row["model"] != PLAIN and plain is not None:
            columns = {"likelihood": plain["perplexity"], "likelihood's rise": _exact(plain["late rise"])}
            rise = _exact(plain["late rise"] - row["late rise"])
            steps = {"likelihood at step": plain["at step"], "of steps": plain["steps"]}
            compared.append({**row, **columns, **steps, "rise saved": rise})
    table = []
    for means in means_over_seeds(compared, GROUP, ("likelihood", "likelihood's rise", "perplexity", "saved", "rise saved")):
        of_model = [row for row in compared if all(row[name] == means[name] for name in GROUP)]
        foreign = sum(not row["own"] for row in of_model)
        steps = {name: [row[name] for row in of_model] for name in ("likelihood at step", "of steps", "at step")}
        chosen = {name: of_model[0][name] for name in ("parameters", "rate", "strength")}
        table.append({**means, **chosen, **steps, "of likelihood": foreign, "verdict": verdict(means["saved"])})
    return table


def _exact(nats: float) -> Estimate:
    return Estimate.exact(nats, unit="nats per token")


def verdicts(effect_rows: Rows) -> list[Row]:
    """How often each model gains, loses or neither, over texts, and what this says of it."""
    table = []
    for model in dict.fromkeys(row["model"] for row in effect_rows):
        words: Sequence[str] = [row["verdict"] for row in effect_rows if row["model"] == model]
        counts = {word: words.count(word) for word in ("gains", "open", "loses")}
        table.append({"model": model, "conditions": len(words), **counts, "verdict": conclusion(**counts)})
    return table
