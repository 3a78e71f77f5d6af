import subprocess
import sys

import pytest

from esscher.core.config import from_dict, to_dict
from esscher.energies.config import EnergyConfig
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import TransformerConfig

CONFIGS = [
    EnergyConfig(),
    EnergyConfig("unidirectional", "last", GruConfig(8, 1)),
    EnergyConfig("bidirectional", "first", TransformerConfig(8, 1, 2, 8), hidden=4, bound=3.0),
    EnergyConfig("encoder", encoder="a", on="tokens", lora=4),
    EnergyConfig("shared", "whole"),
    EnergyConfig(dropout=0.1),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_settings_survive_as_plain_values(config):
    assert from_dict(EnergyConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "sideways"}, "Unknown kind 'sideways'.*unidirectional, bidirectional, encoder, shared"),
        ({"pooling": "max"}, "Unknown pooling 'max'"),
        ({"on": "bytes"}, "Unknown on 'bytes'; the known ones are text, tokens"),
        ({"kind": "shared", "pooling": "first"}, "sees only the first token"),
        ({"bound": 0.0}, "more than 0"),
        ({"hidden": 0}, "hidden is at least 1"),
        ({"dropout": 1.0}, r"lies in \[0, 1\)"),
        ({"kind": "bidirectional", "encoder": "a"}, "encoder has no effect on an energy of kind 'bidirectional'"),
        ({"kind": "shared", "network": TransformerConfig()}, "network has no effect"),
        ({"network": TransformerConfig(), "dropout": 0.1}, "dropout has no effect on an energy with a network of its own"),
        ({"network": TransformerConfig(), "lora": 2}, "lora has no effect"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    """Checked as the library does by itself, without the type checker of the tests."""
    config = object.__new__(EnergyConfig)
    config.__dict__.update({**EnergyConfig().__dict__, **settings})
    with pytest.raises(ValueError, match=message):
        config.__post_init__()


def test_an_unknown_key_is_named():
    with pytest.raises(ValueError, match=r"Unknown key 'energy\.poling'"):
        from_dict(EnergyConfig, {"poling": "mean"}, "energy.")


def test_settings_need_no_torch():
    code = "import sys, esscher.energies.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
