"""Stores of objects: S3 and Swift, burstd's own and users'."""
