"""What is replayed on: a site, its queue, clouds and their machines."""
