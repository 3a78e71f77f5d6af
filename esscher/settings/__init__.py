"""The settings of runs, without torch: what YAML files and dotted flags name, and run folders remember."""
