"""Distributions with exact quantities: weighted automata, exponential families, enumeration of small spaces."""
