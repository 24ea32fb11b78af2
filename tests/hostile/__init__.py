"""Hostile inputs: a table of them with what each gets, and a fuzzer of the whole command line."""
