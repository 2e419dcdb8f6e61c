"""Microsoft Azure. provider.py puts it together; calls.py is the only speaker, access.py of Microsoft's libraries."""
