"""Scheduling policies, one folder a system, found through the registry."""
