"""Games on continuous points: discriminators that are energies, and classifiers that learn from few labels."""
