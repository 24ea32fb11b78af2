"""What a job costs in one slot, and where it then stands."""
