"""The lines of slurm.conf and gres.conf that burstd needs."""
