"""The concepts: spaces and sequences, tilted models, draws, estimates, objectives; settings, storage, progress."""
