"""What the control interface answers, as JSON: for the daemon that makes it and for burstctl that shows it."""
