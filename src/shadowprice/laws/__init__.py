"""How long tasks last: distributions, fits to measured durations, and their names in files."""
