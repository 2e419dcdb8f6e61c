"""burstd: makes a cloud look like one more partition of a Slurm cluster."""
