"""Scheduling policies, one folder per system; the registry finds them."""
