"""Connections of users into their running jobs: ports, output and shells."""
