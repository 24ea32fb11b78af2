"""Cluster, job and parameter files: a file is accepted as a whole, or refused with all problems."""

from shadowprice.inputs.files import read_cluster, read_jobs, read_parameters

__all__ = ["read_cluster", "read_jobs", "read_parameters"]
