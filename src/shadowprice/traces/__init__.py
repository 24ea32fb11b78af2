"""Trace importers, one a format, and the seeded synthesis of what traces lack."""
