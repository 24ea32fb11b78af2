"""Durable state: engine and store, changed by operations and published as views."""
