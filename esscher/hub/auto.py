"""Importing this makes the models of esscher known to the Auto classes of `transformers`.

    import esscher.hub.auto
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("runs/first")
    tokenizer = AutoTokenizer.from_pretrained("runs/first")

Tokenizers are those of `transformers` already, and need no import.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from esscher.hub.network_lm import MODELS, network_lm

__all__ = ["network_lm"]

for _kind, (_config, _model) in MODELS.items():
    AutoConfig.register(_kind, _config, exist_ok=True)
    AutoModelForCausalLM.register(_config, _model, exist_ok=True)
