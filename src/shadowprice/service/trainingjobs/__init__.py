"""`TrainingJob` resources of a Kubernetes cluster as jobs of the service, and their status."""
