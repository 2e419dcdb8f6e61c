"""From a request to servers, with all that they need."""
