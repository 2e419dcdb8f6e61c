"""Bytes between file systems, stores and nodes. Standard library only: a part of it goes to the nodes as one file."""
