"""The contract of a scheduler, on a real Slurm."""
