"""Texts, pairs, images and labels: from files or names to sequences."""
