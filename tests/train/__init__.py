"""Tests that need torch: ``make test SUITE=train``."""
