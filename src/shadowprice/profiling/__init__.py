"""Profiling of a real job: its speed by number of workers, and the models that fit it."""
