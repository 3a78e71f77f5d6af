"""Reports of runs: pages, tables and pictures."""
