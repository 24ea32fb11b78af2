"""Copies of tasks against stragglers (CSD)."""
