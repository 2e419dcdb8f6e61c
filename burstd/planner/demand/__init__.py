"""Which pending jobs more nodes would start, and what each of them needs."""
