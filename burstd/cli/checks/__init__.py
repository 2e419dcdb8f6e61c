"""burstctl check and policy check: what in the settings, on this host and in clouds would keep jobs from running."""
