"""What holds: engine and store as one, changed by operations, told as views."""
