"""Speculative copies of tasks against stragglers, as in CSD (`design/0005-cloning.md`)."""
