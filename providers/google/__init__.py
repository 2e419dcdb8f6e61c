"""Google Compute Engine. provider.py puts it together; calls.py is the only speaker of Google's libraries."""
