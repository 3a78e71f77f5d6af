"""Table B.2 of the thesis, its claims about the plane, and what our rows say of them.

A claim is that one game has a smaller divergence than another. Its effect is the ratio of the two, seed by seed: the geometric
mean with Student's interval over seeds. It is "reproduced" where the interval lies below 1, "refuted under these conditions"
where it lies above, and "open" otherwise or with one seed.
"""

import math
from collections.abc import Mapping

from esscher.core.estimate import Estimate
from esscher.papers.study import OPEN, REFUTED, REPRODUCED, Row, Rows, means_over_seeds, table_rows, verdict_of

GAN, CONST, VI, NN = "GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN"
MODELS = (GAN, CONST, VI, NN)
MAIN = ("KL(disc||data)", "KL(gen||data)")
EXACT = "exact KL(disc||data)"  # without the published floor
DIVERGENCES = (
    "KL(gen||emp)", "KL(emp||gen)", "KL(gen||data)", "KL(data||gen)", "KL(disc||emp)", "KL(emp||disc)", "KL(disc||data)",
    "KL(data||disc)", "KL(gen||disc)", "KL(disc||gen)",
)  # fmt: skip
"""The columns of Table B.2, in its order."""
PAPER = table_rows(
    ("process", "model", *DIVERGENCES),
    ("four Gaussians", "GAN", 0.3034, 0.5024, 0.2498, 0.4807, 6.7587, 2.0648, 6.2020, 2.0553, 2.4596, 7.0895),
    ("four Gaussians", "EGAN-Const", 0.2711, 0.4888, 0.2239, 0.4735, 6.7916, 2.1243, 6.2159, 2.1149, 2.5062, 7.0553),
    ("four Gaussians", "EGAN-Ent-VI", 0.1422, 0.1367, 0.0896, 0.1214, 0.8866, 0.6532, 0.7215, 0.6442, 0.7711, 1.0638),
    ("four Gaussians", "EGAN-Ent-NN", 0.1131, 0.1006, 0.0621, 0.0862, 0.0993, 0.1356, 0.0901, 0.1187, 0.1905, 0.1208),
    ("biased pair", "GAN", 0.0788, 0.0705, 0.0413, 0.0547, 7.1539, 2.5230, 6.4927, 2.5018, 2.5205, 7.1140),
    ("biased pair", "EGAN-Const", 0.1545, 0.1649, 0.1211, 0.1519, 7.1568, 2.5269, 6.4969, 2.5057, 2.5860, 7.1995),
    ("biased pair", "EGAN-Ent-VI", 0.0576, 0.0668, 0.0303, 0.0518, 3.9151, 1.3574, 2.9894, 1.3365, 1.4052, 4.0632),
    ("biased pair", "EGAN-Ent-NN", 0.0784, 0.0574, 0.0334, 0.0422, 0.8505, 0.3480, 0.5199, 0.3299, 0.3250, 0.7835),
    ("two spirals", "GAN", 0.5297, 0.2701, 0.3758, 0.7240, 6.3507, 1.7180, 4.3818, 1.0866, 1.6519, 5.7694),
    ("two spirals", "EGAN-Const", 0.7473, 1.0325, 0.7152, 1.6703, 5.9930, 1.5732, 3.9749, 0.9703, 1.8380, 6.0471),
    ("two spirals", "EGAN-Ent-VI", 0.2014, 0.1260, 0.4283, 0.8399, 1.1099, 0.3508, 0.3061, 0.4037, 0.4324, 0.9917),
    ("two spirals", "EGAN-Ent-NN", 0.1246, 0.1147, 0.4475, 1.2435, 0.1036, 0.0857, 0.4086, 0.7917, 0.1365, 0.1686),
)  # fmt: skip
CLAIMS = (
    ("the cost of EGAN-Ent-NN is an energy, that of EGAN-Const is not", "EGAN-Ent-NN", "EGAN-Const", "KL(disc||data)"),
    ("the cost of EGAN-Ent-VI is an energy, that of EGAN-Const is not", "EGAN-Ent-VI", "EGAN-Const", "KL(disc||data)"),
    ("the cost of EGAN-Ent-NN is nearer than that of EGAN-Ent-VI", "EGAN-Ent-NN", "EGAN-Ent-VI", "KL(disc||data)"),
    ("the generator of EGAN-Ent-NN is nearer than the GAN's", "EGAN-Ent-NN", "GAN", "KL(gen||data)"),
    ("the generator of EGAN-Ent-VI is nearer than the GAN's", "EGAN-Ent-VI", "GAN", "KL(gen||data)"),
)  # fmt: skip
ABOUT_CLAIMS = "The ratio of two divergences, seed by seed, with an interval over seeds; below 1 the first one is nearer."


def judge_claims(rows: Rows) -> list[Row]:
    """The effect of each claim on each process beside the thesis's, and the verdict. Where the thesis's own figures go against
    a claim, that they do is what is judged."""
    published = {(row["process"], row["model"]): row for row in PAPER}
    judged = []
    for claim, near, far, column in CLAIMS:
        for process in dict.fromkeys(row["process"] for row in rows):
            thesis = published[process, near][column] / published[process, far][column]
            effect = ratio_over_seeds(*(_by_seed(rows, process, model, column) for model in (near, far)))
            about = {"claim": claim, "process": process, "quantity": column, "ratio": effect, "thesis": round(thesis, 3)}
            judged.append({**about, "verdict": verdict(effect, thesis)})
    return judged


def verdict(effect: Estimate | None, thesis: float) -> str:
    """Whether a ratio lies on the side of 1 on which the thesis has it."""
    if effect is None or effect.low <= 1 <= effect.high:
        return OPEN
    return REPRODUCED if (effect.high < 1) == (thesis < 1) else REFUTED


def differences(left: Mapping[int, float], right: Mapping[int, float]) -> dict[int, float]:
    """Left minus right in each seed that both have."""
    return {seed: left[seed] - right[seed] for seed in sorted(set(left) & set(right))}


def mean_over_seeds(values: Mapping[int, float], unit: str = "") -> Estimate | None:
    """The mean with Student's interval over seeds; None for fewer than two."""
    rows = [{"": 0, "effect": Estimate.exact(value, unit=unit)} for value in values.values()]
    means = means_over_seeds(rows, ("",))
    return means[0]["effect"] if means else None


def ratio_over_seeds(near: Mapping[int, float], far: Mapping[int, float]) -> Estimate | None:
    """The geometric mean of ratios, over the seeds that both have; None for fewer than two."""
    logs = ({seed: math.log(value) for seed, value in values.items()} for values in (near, far))
    mean = mean_over_seeds(differences(*logs))
    return None if mean is None else mean.map(math.exp)


def above_zero(effect: Estimate | None) -> str:
    """The verdict on the claim that an effect lies above 0; without two seeds it is open."""
    return OPEN if effect is None else verdict_of(effect)


def _by_seed(rows: Rows, process: str, model: str, column: str) -> dict[int, float]:
    return {row["seed"]: row[column].value for row in rows if (row["process"], row["model"]) == (process, model)}
