"""Connections by ssh: keys, host keys, sessions."""
