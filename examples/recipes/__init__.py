"""The examples on data that anyone can install, with seeds: ``python -m examples.recipes NAME --output-dir DIR``."""
