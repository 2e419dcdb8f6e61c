"""The life of machines, acted out: launched, adopted, interrupted, ended."""
