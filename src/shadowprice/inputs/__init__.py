"""Reading cluster, job and parameter files: all of a file or none of it."""

from shadowprice.inputs.files import read_cluster, read_jobs, read_parameters

__all__ = ["read_cluster", "read_jobs", "read_parameters"]
