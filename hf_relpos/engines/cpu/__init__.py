"""The engine for the CPU: a compiled kernel."""
