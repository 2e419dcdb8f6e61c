"""The routes of the control interface, by what they are about."""
