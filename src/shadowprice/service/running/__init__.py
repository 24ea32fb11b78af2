"""Between the truth and what really runs: orders to an executor, and what is heard of it."""
