"""Google Compute Engine as far as burstd needs it: a server that holds every request and answer to Google's schemas."""
