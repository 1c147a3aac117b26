"""Measurements of the package. Each is one command and keeps its numbers in ``benchmarks/results``."""
