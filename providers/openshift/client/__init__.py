"""Connections to the API server, and through it into pods."""
