"""Exponential resource prices, shared by the policies that post them."""
