"""Cost and placement of a job in one slot."""
