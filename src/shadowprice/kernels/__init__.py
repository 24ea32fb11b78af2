"""Numba kernels on plain arrays; each has a slow twin in ``tests/oracles``."""
