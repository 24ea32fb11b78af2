"""What the policies that place the next slot have in common: room, and open jobs as rows."""
