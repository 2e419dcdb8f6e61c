"""What a replay has come to: figures, a table, a page."""
