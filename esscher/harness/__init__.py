"""Models of this library in lm-eval, EleutherAI's evaluation harness."""
