"""Trace importers, one for each format, and seeded synthesis of what traces lack."""
