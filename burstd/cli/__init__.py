"""burstctl: one file a noun. What every one of them shares is in session.py and output.py."""
