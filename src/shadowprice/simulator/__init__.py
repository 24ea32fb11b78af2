"""The driver in simulated time: execution models, scenarios and audits."""
