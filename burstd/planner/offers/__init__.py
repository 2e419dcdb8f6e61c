"""Which offers may fill a slot, at which price, from which image, and for whom."""
