"""Draws from a tilted model, and what their weights mean."""
