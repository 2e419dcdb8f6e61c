"""Processes with a user's rights, which open files for burstd and have no other power."""
