"""Objects named by their content: what they hold, and where they are."""
