"""The kinds of decoders by name, without torch: `DECODERS.from_dict({"kind": "beam", "width": 4}) == BeamSearch(4)`."""

from esscher.core.config import Kind, Registry

DECODERS = Registry(
    "decoder",
    "beam",
    {
        "beam": Kind("esscher.decoding.beam_search:BeamSearch"),
        "greedy": Kind("esscher.decoding.beam_search:Greedy"),
        "sample": Kind("esscher.decoding.decoders:RandomDraw"),
        "best-of-n": Kind("esscher.decoding.decoders:BestOfN"),
        "mbr": Kind("esscher.decoding.decoders:MinimumBayesRisk"),
    },
)
