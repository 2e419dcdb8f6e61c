"""What can be started: groups, nodes, limits."""
