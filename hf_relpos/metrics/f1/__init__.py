"""The F1 metric as a local `evaluate` module."""
