"""The laboratory: distributions of which everything is computable."""
