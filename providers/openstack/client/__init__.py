"""How the cloud is spoken to: credentials, calls, errors."""
