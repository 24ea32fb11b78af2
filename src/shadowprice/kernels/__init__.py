"""Numba kernels on plain arrays; tests compare them with slow twins in ``tests/oracles``."""
