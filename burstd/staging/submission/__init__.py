"""Checks of a submitted job: directives, locations, quotas and predecessors."""
