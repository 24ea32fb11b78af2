"""Reconciliation of the durable state with an executor, and observation of other schedulers."""
