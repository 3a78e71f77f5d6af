"""One sentence for each number that verbs report, so that a report is read without the manual."""

import re

MEANINGS = {
    "perplexity": "How many equally likely choices the model seems to have at each unit: exp of its surprise; lower is better.",
    "bits": "The model's mean surprise at held-out data in bits; lower is better.",
    "base": "Of the base model alone, before any tilt.",
    "tilted": "Of the base tilted by the energy.",
    "saved by tilting": "Surprise that the tilt takes away on the same data; above 0 the tilted model is better.",
    "log z": "The logarithm of the constant that makes the tilted model's probabilities sum to one, estimated from draws.",
    "log z spread": "How much log Z differs from prompt to prompt; 0 if the energy needs no constant of its own for each.",
    "reliability": "Whether the draws can carry the estimate of log Z: good, doubtful or unreliable.",
    "effective draws": "How many equally weighted draws would be as good as these weighted ones.",
    "drawn from the base": "Sequences that were drawn from the base to fit and to measure: the price in computation.",
    "kl to the base": "How far the tilt moves the model from its base; 0 means not at all.",
    "l1 of moments": "How far, summed over features, the tilted model's averages are from those wanted; 0 is perfect.",
    "loss on held out text": "What training made small, on text that it did not learn from; lower is better.",
    "validation": "What training made small, on data that it did not learn from; lower is better.",
    "steps": "Updates of the weights.",
    "best step": "The update after which held-out data were predicted best; its weights are kept.",
    "stopped": "Why training ended.",
    "drawn": "Sequences that were drawn for the student to learn from.",
    "worth": "Equally weighted sequences that the drawn ones are worth, stage by stage.",
    "seed": "The number that all chance came from; the same seed gives the same run.",
    "regime": "How the weights of the features were found.",
    "method": "How the student learnt.",
    "features": "Each feature's average in the data, the base and the tilted model, and the weight that brings it there.",
    "distance": "How far the student is from the tilted model; 0 means equal.",
    "measured": "On test data that nothing was learnt or chosen from.",
    "measured on": "What the numbers were measured on.",
    "perplexities": "exp of nats per unit; end symbols count, prompts do not. Intervals are for all data like these.",
    "steps table": "The perplexity at each position of the text.",
    "worst prompts": "The prompts whose log Z is known least well.",
    "rows": "Our numbers; brackets hold the interval where the run has one.",
    "paper": "What the paper printed.",
}
INTERVAL = (
    "A number in brackets is an interval: it covers the true value in 95 of 100 repetitions, unless another rate is stated. "
    "Numbers without one are counts, settings, or known exactly."
)


def meaning(name: str) -> str:
    """The sentence of a name; of a longer name, that of the longest known name it begins or ends with; else none."""
    plain = re.sub(r"[_\-]+", " ", name).strip().lower()
    known = [one for one in MEANINGS if plain == one or plain.startswith(f"{one} ") or plain.endswith(f" {one}")]
    return MEANINGS[max(known, key=len)] if known else ""
