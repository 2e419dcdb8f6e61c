"""What the sandbox cloud sells and holds."""
