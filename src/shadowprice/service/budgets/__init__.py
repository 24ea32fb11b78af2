"""Budgets of tenants: accounts, billing of events, grants and statements."""
