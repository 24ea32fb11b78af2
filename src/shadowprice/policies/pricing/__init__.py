"""Exponential resource prices, shared by the policies `oasis` and `pdors`."""
