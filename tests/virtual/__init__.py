"""A virtual Slurm, virtual machines and a virtual clock, around the same core and reconciler as the daemon."""
