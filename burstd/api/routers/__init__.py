"""The routes of the control interface, and how their answers are made; a file for each group of endpoints."""
