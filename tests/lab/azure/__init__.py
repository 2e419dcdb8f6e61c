"""A cloud that plays Azure: its interfaces by HTTPS, every request and answer held against azure-mgmt's own models."""
