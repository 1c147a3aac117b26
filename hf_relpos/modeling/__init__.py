"""What makes a model of Transformers a patched one, and what is known of it."""
