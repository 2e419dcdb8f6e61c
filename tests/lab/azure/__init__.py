"""A cloud that plays Azure: its interfaces by HTTPS, with azure-mgmt's own models of compute and network."""
