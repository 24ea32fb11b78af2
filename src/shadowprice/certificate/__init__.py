"""Distance of a result from the optimum: bounds by prices, and good schedules below them."""
