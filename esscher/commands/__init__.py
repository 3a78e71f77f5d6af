"""One module a verb of the command line; none imports torch before it runs."""
