"""The commands of burstctl, a file for each noun."""
