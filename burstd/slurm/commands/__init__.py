"""Slurm's commands, and what they print."""
