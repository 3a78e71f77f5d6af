"""Importing this module registers the networks of esscher with the Auto classes of `transformers`.

    import esscher.hub.auto
    model = AutoModelForCausalLM.from_pretrained("runs/first")

A kind that is added to `esscher.networks.registry.NETWORKS` later is registered by calling `register_kinds` again.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from esscher.hub.folder import PREFIX
from esscher.hub.network_lm import hf_classes, network_lm
from esscher.networks.registry import kinds_of

__all__ = ["network_lm", "register_kinds"]


def register_kinds() -> None:
    """Register all kinds of text networks with `AutoConfig` and `AutoModelForCausalLM`."""
    for kind in kinds_of("text"):
        config, model = hf_classes(kind)
        AutoConfig.register(PREFIX + kind, config, exist_ok=True)
        AutoModelForCausalLM.register(config, model, exist_ok=True)


register_kinds()
