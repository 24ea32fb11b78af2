"""What the policies of tenants with shares have in common: places, cells and gangs."""
