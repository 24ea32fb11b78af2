"""Data-parallel training with all-reduce: every worker has the model."""
