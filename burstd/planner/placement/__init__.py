"""Pending jobs onto nodes: what there is, what is coming, and new slots."""
