"""The model and its verbs: each verb is one settings class in `esscher.workflow.config` and one call."""
