"""The policies that come with burstd, one file each."""
