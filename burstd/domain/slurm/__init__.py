"""Slurm's nouns: jobs, nodes and their shapes, and what is expected of jobs."""
