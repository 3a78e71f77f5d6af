"""How good texts are by their references, from what each line counts."""
