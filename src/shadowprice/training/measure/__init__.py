"""Measuring a real job: how fast it trains with how many workers, and which model that fits.

The only part of `shadowprice.training` that does not run inside jobs: it starts them.
"""
