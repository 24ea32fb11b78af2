"""The driver on simulated time: execution model, recording and results."""
