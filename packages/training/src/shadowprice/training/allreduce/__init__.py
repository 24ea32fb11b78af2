"""Training in which all workers hold the model and add up their gradients."""
