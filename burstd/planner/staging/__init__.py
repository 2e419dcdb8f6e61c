"""Which transfers begin when, and which machines the data of jobs wants."""
