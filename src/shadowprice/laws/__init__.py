"""Distributions of durations: parametric ones, fits to measurements, and their names in files."""
