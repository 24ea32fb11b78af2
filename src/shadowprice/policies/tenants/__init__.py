"""Shared code of policies for tenants with shares: capacity units, cells and gangs."""
