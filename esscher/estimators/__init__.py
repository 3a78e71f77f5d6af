"""Numbers about models from draws and data, each with its interval."""
