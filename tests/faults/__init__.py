"""A package, so that its folder is never on the path: `numbers` there is Python's own."""
