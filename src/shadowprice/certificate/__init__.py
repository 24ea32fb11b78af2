"""How far a result is from the best possible: upper bounds by prices, good schedules below them."""
