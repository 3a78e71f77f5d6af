"""Figures of rare events for `tests/figures.py`: coverage on automata, and errors on a story model."""

import json
from pathlib import Path


def risk_figures(folder: Path) -> list[dict[str, object]]:
    """The coverage of rare events by what the call knows, process and probability."""
    rows = json.loads((folder / "result.json").read_text())["rows"]
    return [row | {"coverage": [row["coverage"][end] for end in ("value", "low", "high")]} for row in rows]


def story_figures(folder: Path) -> dict[str, object]:
    """The true probabilities, and the errors by event and method."""
    result = json.loads((folder / "result.json").read_text())
    return {"truth": result["truth"], "rows": result["rows"]}


def risk_coverage(rows: list[dict[str, object]], knows: str) -> str:
    """A line for each process and probability: coverage with its interval, width, verdicts, misses and cost."""
    head = ["process", "probability", "replications", "covers, %", "mean / truth", "high / low", "good, doubtful, unreliable",
            "far misses", "unwarned", "most sequences of budget"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in sorted((row for row in rows if row["knows"] == knows), key=lambda row: -float(row["truth"])):
        value, low, high = (f"{100 * float(number):.1f}" for number in row["coverage"])
        wide = float(row["high_over_low"])
        width = "above 1,000" if wide >= 1000 else f"{wide:.1f}" if wide >= 2 else f"{wide:.3f}"
        verdicts = ", ".join(str(row[word]) for word in ("good", "doubtful", "unreliable"))
        cells = [row["process"], f"{row['truth']:.2g}", row["replications"], f"{value} [{low}, {high}]",
                 f"{row['mean_over_truth']:.3f}", width, verdicts, row["far_misses"], row["far_misses_unwarned"],
                 f"{row['most_sequences']:,.0f} of {row['budget']:,}"]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n" + "\n".join(lines) + "\n"


def story_truth(figures: dict[str, list[dict[str, object]]]) -> str:
    """A line for each event: its probability, exact or by direct draws."""
    lines = ["| event | what | probability | how it is known |", "| --- | --- | --- | --- |"]
    for row in figures["truth"]:
        if row["direct"] is None:
            truth, how = f"{row['truth']:.4g}", f"all ways to write it; left out at most {row['left_out_at_most']:.0e}"
        else:
            truth = "{value:.2g} [{low:.2g}, {high:.2g}]".format(**row["direct"])
            how = f"{row['direct']['n']:,} direct draws"
        lines.append(f"| {row['event']} | `{row['what']}` | {truth} | {how} |")
    return "\n" + "\n".join(lines) + "\n"


def story_errors(figures: dict[str, list[dict[str, object]]]) -> str:
    """A line for each event and method: the estimates, and their error beside that of direct draws with as many tokens."""
    head = ["event", "method", "sequences' worth", "estimates", "relative error", "direct draws", "ratio", "verdicts"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in figures["rows"]:
        errors = f"{row['relative_error']:.2g} | {row['direct_error']:.2g} | {row['ratio']:.2g}"
        verdicts = f"{row['verdicts']}; {row['covered']} of {row['replications']} cover" if "verdicts" in row else ""
        lines.append(
            f"| {row['event']} | {row['method']} | {row['sequences']:,.0f} | {row['estimates']} | {errors} | {verdicts} |"
        )
    return "\n" + "\n".join(lines) + "\n"


def example_figures(folder: Path) -> dict[str, object]:
    """What `esscher risk` printed of one event of a pretrained model."""
    answer = json.loads((folder / "answer.json").read_text())
    names = ("probability", "verdict", "reason", "cost", "direct_draws_for_this_error", "tokens_saved")
    return {
        **{name: answer["facts"][name] for name in names},
        "texts": [" ".join(row["text"].split()) for row in answer["tables"]["texts"]],
    }


def example(figures: dict[str, object]) -> str:
    """The facts and the texts, as a table."""
    probability = "{value:.2g} [{low:.2g}, {high:.2g}]".format(**figures["probability"])
    direct = f"{figures['direct_draws_for_this_error']:,.0f}"
    lines = [
        f"| probability | {probability} |",
        "| --- | --- |",
        f"| verdict | {figures['verdict']}: {figures['reason']} |",
        f"| cost | {figures['cost']} |",
        f"| direct draws for this error | {direct}, {figures['tokens_saved']} |",
        *(f"| a text | … {text} … |" for text in figures["texts"]),
    ]
    return "\n" + "\n".join(lines) + "\n"
