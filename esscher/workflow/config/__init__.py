"""The settings of the verbs, without torch."""
