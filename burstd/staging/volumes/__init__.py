"""Volumes of users: whose turn it is, the cloud's disks, and their mounts on nodes."""
