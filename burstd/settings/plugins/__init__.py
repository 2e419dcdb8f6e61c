"""Plug-ins that the settings name: found, trusted, made."""
