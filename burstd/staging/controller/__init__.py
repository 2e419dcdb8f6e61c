"""Decides what comes next for each job's data, and answers Slurm's hooks."""
