"""``burstctl top``: the same as the other commands show, live."""
