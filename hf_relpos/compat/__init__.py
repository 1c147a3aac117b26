"""Foreign packages: their private names, and what we change in them, a file for each."""
