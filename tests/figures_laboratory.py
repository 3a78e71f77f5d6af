"""Blocks of `figures.py` on the exact laboratory of E-Forcing: what each objective saves on average over conditions."""

from collections.abc import Mapping

ALL, PROCESSES = "all conditions", ("motif", "hidden Markov")
Figures = Mapping[str, object]


def averages_by_group(figures: Figures) -> str:
    """A line for each objective: what it saves of likelihood's KL over all conditions, by process and by number of strings."""
    groups = list(dict.fromkeys(row["over"] for row in figures["averages"]))
    return _table(
        ["objective", *groups, "by the average", "by the count"],
        [
            [method, *(in_words(_row(figures, method, group)["KL"]) for group in groups),
             _verdict(figures, method, ALL), _count(figures, method)["verdict"]]
            for method in _methods(figures)[1:]
        ],
    )  # fmt: skip


def averages_by_divergence(figures: Figures) -> str:
    """A line for each objective: what it saves of each divergence, and what the own energy saves of its KL."""
    columns = ("KL", "prefix KL", "after own prefixes", "own energy")
    lines = [[method, *(in_words(_row(figures, method, ALL)[name]) for name in columns)] for method in _methods(figures)]
    lines[0][1:4] = ["", "", ""]  # likelihood against itself
    return _table(["objective", *columns], lines)


def headline(figures: Figures, method: str) -> str:
    """What an objective saves of likelihood's KL, in a cell of a table."""
    count = _count(figures, method)
    parts = ", ".join(f"{group} {in_words(_row(figures, method, group)['KL'])}" for group in PROCESSES)
    whole = in_words(_row(figures, method, ALL)["KL"])
    return (
        f" saves in per cent, mean of {count['conditions']} conditions: {whole} ({parts}); {count['gains']} of them "
        f"gain and {count['loses']} lose "
    )


def headline_verdict(figures: Figures, method: str) -> str:
    """The verdict by the count of conditions, the rule that was written down first, and those of averages, in a cell."""
    if figures["missing"]:
        return " *open*: not complete "
    parts = ", ".join(f"{group} *{_verdict(figures, method, group)}*" for group in PROCESSES)
    whole, count = _verdict(figures, method, ALL), _count(figures, method)["verdict"]
    return f" by the count of conditions *{count}*; on average *{whole}* ({parts}) "


def own_energy(figures: Figures) -> str:
    """What the own energy saves of the KL of each form of E-Forcing, in a cell of a table."""
    forms = [method for method in _methods(figures) if method.startswith("E-Forcing") and method.endswith("drawn")]
    parts = [f"{form.split(', ')[1]} {in_words(_row(figures, form, ALL)['own energy'])}" for form in forms]
    return f" per cent of the KL that it saves, exact, strings of one length: {'; '.join(parts)} "


def own_kl(figures: Figures, method: str) -> str:
    """What an objective saves of the error after own prefixes, in a cell of a table."""
    return f" exactly, error after own prefixes, per cent saved: {in_words(_row(figures, method, ALL)['after own prefixes'])} "


def starts_of(chosen: list[Mapping[str, object]]) -> dict[str, list[int]]:
    """In how many conditions each form of E-Forcing was chosen to start at once, and of how many."""
    forms = {str(row["method"]): [0, 0] for row in chosen if str(row["method"]).startswith("E-Forcing")}
    for row in chosen:
        if row["method"] in forms:
            forms[row["method"]][0] += row["begin"] == 0
            forms[row["method"]][1] += 1
    return forms


def starts(figures: Figures) -> str:
    """How often the validation loss chose to start at once, in a sentence."""
    parts = [f"{form.removeprefix('E-Forcing, ')}: {count} of {whole}" for form, (count, whole) in figures["starts"].items()]
    return f" {'; '.join(parts)} "


def in_words(estimate: list[float]) -> str:
    """Value and interval; bold where the interval does not hold 0."""
    value, low, high = estimate
    text = f"{value:.1f} [{low:.1f}, {high:.1f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _methods(figures: Figures) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in figures["averages"]))


def _row(figures: Figures, method: str, group: str) -> Mapping[str, object]:
    return next(row for row in figures["averages"] if (row["method"], row["over"]) == (method, group))


def _count(figures: Figures, method: str) -> Mapping[str, object]:
    return next(row for row in figures["verdicts"] if row["method"] == method)


def _verdict(figures: Figures, method: str, group: str) -> str:
    return "open" if figures["missing"] else _row(figures, method, group)["verdict"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n" + "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


PUBLISHED, ESTIMATOR, ONCE = (
    "E-Forcing, published, drawn", "E-Forcing, published, drawn, published estimator", "E-Forcing, counted once, drawn",
)  # fmt: skip
BLOCKS = {
    "averages": averages_by_group,
    "divergences": averages_by_divergence,
    "published_saved": lambda figures: headline(figures, PUBLISHED),
    "published_verdict": lambda figures: headline_verdict(figures, PUBLISHED),
    "estimator_saved": lambda figures: headline(figures, ESTIMATOR),
    "estimator_verdict": lambda figures: headline_verdict(figures, ESTIMATOR),
    "once_saved": lambda figures: headline(figures, ONCE),
    "once_verdict": lambda figures: headline_verdict(figures, ONCE),
    "own_energy": own_energy,
    "starts": starts,
    "own_prefixes": lambda figures: own_kl(figures, PUBLISHED),
}
