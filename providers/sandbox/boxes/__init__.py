"""Boxes: hosts made of namespaces on this machine."""
