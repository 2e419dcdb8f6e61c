"""burstctl init, uninit and check --deep: burstd put into a running Slurm, tried, and taken out again."""
