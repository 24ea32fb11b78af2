"""Makes the executor run what the engine decided, or only observes jobs of other schedulers."""
