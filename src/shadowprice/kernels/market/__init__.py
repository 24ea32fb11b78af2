"""Gangs of workers on counted units of capacity, and their payments (Astraea)."""
