"""Gangs of workers on counted places, and what they pay (Astraea)."""
