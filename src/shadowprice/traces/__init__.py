"""Trace importers, one per format, and the seeded synthesis of what traces lack."""
