"""What machines cost, may still cost, and have cost those who pay for them."""
