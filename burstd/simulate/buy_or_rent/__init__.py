"""More GPUs on premises, bought or rented for good, beside bursting: one trace replayed with each number of them."""
