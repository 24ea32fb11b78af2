"""Training with parameter servers, in real processes."""
