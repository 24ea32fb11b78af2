"""Distance of a result from the optimum: upper bounds by prices, and good schedules below them."""
