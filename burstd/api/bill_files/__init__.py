"""The bill as files that are handed on: CSV, FOCUS, a page to print."""
