"""Self-contained HTML pages of runs and comparisons."""
