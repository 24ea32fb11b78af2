"""Simulation of workloads: the driver in simulated time, scenarios, comparisons and audits."""
