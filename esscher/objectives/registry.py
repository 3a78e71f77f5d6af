"""The kinds of objective that a base can be trained with, without torch."""

from esscher.core.config import Kind, Registry

OBJECTIVES = Registry(
    "objective",
    "likelihood",
    {
        "likelihood": Kind("esscher.objectives.config:LikelihoodConfig", "esscher.objectives.likelihood:Likelihood"),
        "eforcing": Kind("esscher.objectives.config:EForcingConfig", "esscher.objectives.exposure_bias:EForcing"),
        "scheduled-sampling": Kind(
            "esscher.objectives.config:ScheduledSamplingConfig", "esscher.objectives.exposure_bias:ScheduledSampling"
        ),
        "permutation-lm": Kind(
            "esscher.objectives.config:PermutationLMConfig", "esscher.objectives.permutation_lm:PermutationLM"
        ),
        "masked-lm": Kind("esscher.objectives.config:MaskedLMConfig", "esscher.objectives.permutation_lm:MaskedLM"),
    },
)
ANY_ORDER_OBJECTIVES = ("permutation-lm", "masked-lm")
"""The kinds that train a base to predict in any order."""
