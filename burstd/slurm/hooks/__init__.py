"""The programs that Slurm runs, and burstd's side of them."""
