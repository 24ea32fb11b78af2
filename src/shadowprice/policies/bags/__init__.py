"""Bags of tasks under prices: which start slot, how many copies, what to reserve for them."""
