"""Base of policies that place the next slot: event dispatch, free capacity, job table."""
