"""Better autoregressive sequence models by energies over whole sequences: p(x) ~ a(x) exp(-E(x))."""

__version__ = "0.1.0"
