"""Reconciliation of an executor with the durable state, and observation of running jobs."""
