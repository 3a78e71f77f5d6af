"""The loop that resumes exactly, the settings of runs, and the verbs around it."""
