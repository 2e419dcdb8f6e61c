"""Whether launching would work, looked at without making anything."""
