"""Decoders choose one sequence to show for each prompt; no estimate is made of what they return."""
