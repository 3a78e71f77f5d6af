"""Energies E(x) over whole sequences: declared features, trained networks, or the logits of a base."""
