"""Connections of users into their running jobs: ports and output."""
