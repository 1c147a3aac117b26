"""One task, several position settings, several seeds: fine-tuned alike, and compared."""
