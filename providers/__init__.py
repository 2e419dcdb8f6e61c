"""Clouds: one file or package for each. They know ``burstd.domain`` and nothing else of burstd."""
