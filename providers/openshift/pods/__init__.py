"""Pods: what is asked for, what is seen, what it means."""
