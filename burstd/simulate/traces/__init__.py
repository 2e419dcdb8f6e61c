"""Traces of jobs: their formats, and the window that is replayed."""
