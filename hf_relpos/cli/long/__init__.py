"""The second act of the demo: readers of long texts, and what they are asked; `benchmarks.reads_long` asks more."""
