"""What is on record, by kind."""
