"""The daemon: observes, decides, applies."""
