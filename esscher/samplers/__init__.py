"""Samplers: weighted draws from a tilted model. Every sampler is a frozen dataclass whose fields are its settings."""
