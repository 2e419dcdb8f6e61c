"""Prometheus: what burstd counts and shows, as text for scrapes, and the targets of its nodes."""
