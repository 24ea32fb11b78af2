"""Kubernetes controller that runs `TrainingJob` resources as jobs and writes their status."""
