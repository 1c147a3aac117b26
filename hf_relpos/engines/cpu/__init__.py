"""Engines for the CPU that arrange PyTorch's operators."""
