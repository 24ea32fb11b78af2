"""Hostile inputs: a table with the expected results, and a fuzzer of the whole command line."""
