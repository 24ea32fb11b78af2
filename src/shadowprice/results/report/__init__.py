"""Pages that a person can read: one file each, nothing loaded from elsewhere."""
