"""The driver on simulated time: execution models, scenarios and audits."""
