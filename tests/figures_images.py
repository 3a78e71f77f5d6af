"""Blocks of `figures.py` on images by E-Forcing: the verdicts of each quantity by the count of conditions."""

from collections.abc import Mapping

Figures = Mapping[str, object]


def verdict_of(figures: Figures, model: str, quantity: str) -> str:
    """The verdict on one quantity that is saved, by the rule of the recipe, with its counts."""
    from esscher.papers.eforcing.laboratory_tables import conclusion

    rows = [row for row in figures["effects"] if row["model"] == model]
    gains, loses = (sum(row[quantity][end] * sign > 0 for row in rows) for end, sign in ((1, 1), (2, -1)))
    word = conclusion(gains=gains, open=len(rows) - gains - loses, loses=loses)
    return f"*{word}* (of {len(rows)} conditions {gains} gain, {loses} lose)"


def best_and_last(figures: Figures, model: str) -> str:
    """The verdicts with the weights of the lowest validation loss and with the last ones, in a cell of a table."""
    if figures["missing"]:
        return " *open*: not complete "
    best, last = (verdict_of(figures, model, quantity) for quantity in ("saved", "last saved"))
    return f" weights of the lowest validation loss: {best}; last weights: {last} "


def rise(figures: Figures, model: str) -> str:
    """The verdict on the late rise of the validation loss, in a cell of a table."""
    return " *open*: not complete " if figures["missing"] else f" {verdict_of(figures, model, 'rise saved')} "


BLOCKS = {
    "published_verdict": lambda figures: best_and_last(figures, "E-Forcing"),
    "once_verdict": lambda figures: best_and_last(figures, "E-Forcing, tokens counted once"),
    "rise_verdict": lambda figures: rise(figures, "E-Forcing"),
}
