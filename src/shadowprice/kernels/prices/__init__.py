"""Prices of resources."""
