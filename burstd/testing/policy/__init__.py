"""The contract of a policy."""
