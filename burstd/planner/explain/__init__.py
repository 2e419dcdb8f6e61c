"""Why a job waits or runs where it does, and what would change it."""
