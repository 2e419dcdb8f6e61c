"""Tells people of alarms, budgets and their jobs: what is news, and the ways by which it is sent."""
