"""Base of policies that only decide the next slot, with free capacity and a job table."""
