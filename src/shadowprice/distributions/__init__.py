"""Distributions of durations: parametric, fitted to measurements, and by name in files."""
