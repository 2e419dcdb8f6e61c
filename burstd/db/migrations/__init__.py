"""Alembic's scripts. Part of the package, so that the wheel has them."""
