"""What can be started, for how much, and how many."""
