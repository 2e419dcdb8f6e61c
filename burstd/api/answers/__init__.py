"""What the control interface answers, as JSON."""
