"""Staging: carries out what Slurm's burst buffer hooks request. The controller decides, the transfers move bytes."""
