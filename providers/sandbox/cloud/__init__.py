"""The sandbox cloud's server: what a cloud promises and how it breaks."""
