"""How objects cross from machine to machine."""
