"""When jobs would start, on premises and in the cloud."""
