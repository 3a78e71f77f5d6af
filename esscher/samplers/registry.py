"""The kinds of samplers by name, without torch: `SAMPLERS.from_dict({"kind": "sir", "num_candidates": 256}) == SIR(256)`."""

from esscher.core.config import Kind, Registry

SAMPLERS = Registry(
    "sampler",
    "ancestral",
    {
        "ancestral": Kind("esscher.samplers.ancestral:Ancestral"),
        "importance": Kind("esscher.samplers.importance:Importance"),
        "sir": Kind("esscher.samplers.sir:SIR"),
        "adaptive-sir": Kind("esscher.samplers.sir:AdaptiveSIR"),
        "rejection": Kind("esscher.samplers.accept_reject:Rejection"),
        "quasi-rejection": Kind("esscher.samplers.accept_reject:QuasiRejection"),
        "metropolis": Kind("esscher.samplers.accept_reject:Metropolis"),
        "particles": Kind("esscher.samplers.twists:ParticleSIR"),
        "ladder": Kind("esscher.samplers.ladder:Ladder"),
        "exhaustive": Kind("esscher.samplers.importance:Exhaustive"),
    },
)
