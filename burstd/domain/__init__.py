"""The nouns of burstd and the interfaces of its plug-ins. Standard library only; imports nothing else of burstd."""
