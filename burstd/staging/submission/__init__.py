"""What is looked at when a job is submitted: its lines, places, quotas and predecessors."""
