"""The exact search over the slots of a horizon."""
