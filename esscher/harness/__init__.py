"""Models of this library in lm-eval."""
