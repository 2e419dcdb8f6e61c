"""Staging: what Slurm's burst buffer hooks ask for, brought about. The desk decides, the transfers move bytes."""
