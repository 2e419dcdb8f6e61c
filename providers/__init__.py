"""Clouds: one file or package for each. They know ``burstd.model`` and nothing else of burstd."""
