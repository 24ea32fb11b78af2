"""Smallest changes of a job that get it admitted, for simulations and the live service."""
