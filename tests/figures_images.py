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
    """The verdicts on whether the late rise of the validation loss is smaller, and whether it is gone, in a cell of a table."""
    if figures["missing"]:
        return " *open*: not complete "
    rises = {(row["images"], row["network"], row["model"]): row["late rise"] for row in figures["over seeds"]}
    ours = {key[:2]: value for key, value in rises.items() if key[2] == model}
    left = [100 * value[0] / rises[(*key, "likelihood")][0] for key, value in ours.items()]
    stays = 2 * sum(value[1] > 0 for value in ours.values()) > len(ours)
    gone = "refuted under these conditions" if stays else "open"
    share = f"{min(left):.0f} to {max(left):.0f} % of it remain"
    return f" smaller: {verdict_of(figures, model, 'rise saved')}; gone, as in the paper's figure: *{gone}* ({share}) "


BLOCKS = {
    "published_verdict": lambda figures: best_and_last(figures, "E-Forcing"),
    "once_verdict": lambda figures: best_and_last(figures, "E-Forcing, tokens counted once"),
    "rise_verdict": lambda figures: rise(figures, "E-Forcing"),
}
