"""Queries about the past, the present and hypothetical changes; none changes the state."""
