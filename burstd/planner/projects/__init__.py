"""Quotas and shares of projects: who has what, who is to have what, and what is to be done for it."""
