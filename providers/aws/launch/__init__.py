"""From a request to instances."""
