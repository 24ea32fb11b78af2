"""One module a version of the store."""
