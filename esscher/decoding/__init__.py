"""What to show of a model: beams, and choices among draws."""
