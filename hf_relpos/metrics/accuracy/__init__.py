"""The accuracy metric as a local `evaluate` module."""
