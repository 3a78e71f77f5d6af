"""The registry of network kinds, without torch: where the settings of each are declared, and which module takes them.

    NETWORKS.register("toy", Kind("my_package.toy_config:ToyConfig", "my_package.toy:ToyNetwork"))

adds a kind at run time. Configs live in modules without torch, so that `esscher train --help` answers at once.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

from esscher.core.config import Kind, Registry
from esscher.heads.config import Modality


@runtime_checkable
class NetworkConfig(Protocol):
    """Settings of a network: a frozen dataclass, usually a subclass of `HeadConfig`. `modality` says what its sequences are:
    text, translations of the prompt, or pixels. `width`, that of the hidden vectors, is a multiple of `width_multiple`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    modality: ClassVar[Modality]

    @property
    def width(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def width_multiple(self) -> int: ...

    def with_width(self, width: int) -> "NetworkConfig": ...


def _kind(module: str, config: str, network: str) -> Kind:
    return Kind(f"esscher.networks.{module}_config:{config}", f"esscher.networks.{network}")


NETWORKS = Registry(
    "network",
    "transformer",
    {
        "lstm": _kind("recurrent", "LstmConfig", "recurrent:RecurrentNetwork"),
        "gru": _kind("recurrent", "GruConfig", "recurrent:RecurrentNetwork"),
        "awd-lstm": _kind("recurrent", "AwdLstmConfig", "recurrent:AwdLstmNetwork"),
        "enas": _kind("recurrent", "EnasConfig", "enas:EnasNetwork"),
        "trellisnet": _kind("recurrent", "TrellisNetConfig", "trellisnet:TrellisNetwork"),
        "transformer": _kind("transformer", "TransformerConfig", "transformer:TransformerNetwork"),
        "transformer-xl": _kind("transformer", "TransformerXLConfig", "transformer_xl:TransformerXLNetwork"),
        "deq": _kind("transformer", "DeqConfig", "deq:DeqNetwork"),
        "xlnet": _kind("transformer", "XLNetConfig", "xlnet:XLNetNetwork"),
        "encoder-decoder": _kind("seq2seq", "EncoderDecoderConfig", "seq2seq:EncoderDecoderNetwork"),
        "attentive-lstm": _kind("seq2seq", "AttentiveLstmConfig", "seq2seq:AttentiveLstmNetwork"),
        "pixelcnn": _kind("pixelcnn", "PixelCnnConfig", "pixelcnn:PixelCnnNetwork"),
        "gated-pixelcnn": _kind("pixelcnn", "GatedPixelCnnConfig", "pixelcnn:GatedPixelCnnNetwork"),
        "pixelcnn++": _kind("pixelcnn", "PixelCnnPlusPlusConfig", "pixelcnn:PixelCnnPlusPlusNetwork"),
    },
)


def kinds_of(modality: Modality) -> list[str]:
    """The kinds of networks of this modality."""
    return [name for name, kind in NETWORKS.items() if kind.config_class.modality == modality]
