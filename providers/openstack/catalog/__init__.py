"""What can be started, and how many of it."""
