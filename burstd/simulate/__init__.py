"""Replays a trace of jobs through the decision code, on a virtual clock."""
