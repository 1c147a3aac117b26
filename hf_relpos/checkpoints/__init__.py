"""What is written to folders and the Hub, and what is read from them."""
