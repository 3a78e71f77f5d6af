"""A tilted model behind an HTTP endpoint: `requests` parses and limits, `engine` draws, `server` is the web application."""
