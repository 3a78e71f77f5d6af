"""Pages to look at a model, and to compare two of them blindly."""
