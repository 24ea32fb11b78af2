"""Bags of tasks under prices: start slot, number of copies, and reservation."""
