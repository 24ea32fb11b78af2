"""Profiling of a real job: its speed by number of workers, and the models that fit it.

This is the only part of `shadowprice.training` that doesn't run inside jobs: it starts them.
"""
