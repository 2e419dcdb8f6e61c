"""What is there: servers, what was made for them, whose it is, and its end."""
