"""The only room that speaks to Slurm: its commands, pyslurm, the gate, events and the slurm.conf fragment."""
