"""``#BURST`` lines: their words, and what they ask for."""
