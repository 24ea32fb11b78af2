"""Read-only queries about the past, the present and hypothetical changes."""
