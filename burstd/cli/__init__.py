"""burstctl. What every command shares is in session.py and output.py."""
