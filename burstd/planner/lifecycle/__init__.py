"""What comes next for each claim and each machine."""
