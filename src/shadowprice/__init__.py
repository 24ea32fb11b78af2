"""Price-based scheduling of machine-learning training jobs on shared clusters."""

__version__ = "0.1.0"
