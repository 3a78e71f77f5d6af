"""Web pages to explore one model, and to compare two models blind."""
