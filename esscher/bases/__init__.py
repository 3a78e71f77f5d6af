"""Autoregressive models a(x): networks, counts, folders of others; each scores whole sequences and steps token by token."""
