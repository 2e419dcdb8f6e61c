"""Stores that job data is staged to. None yet: staging is not part of this version."""
