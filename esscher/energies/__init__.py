"""Energies E(x) over whole sequences: written down, learnt, or read from the logits of a base."""
