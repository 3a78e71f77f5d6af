"""The loop that resumes exactly, and what it works with: checkpoints, processes, streams, progress."""
