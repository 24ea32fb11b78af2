"""Speculative copies of tasks, against stragglers: the paper CSD (`design/0005-cloning.md`)."""
