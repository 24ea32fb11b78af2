"""The Kubernetes executor: jobs run as pods of a cluster, whose nodes are the servers.

`executor` implements the contract and `records` stores commands in the API server. `session` is the
open connection. `controller` launches and drives one generation. `pods` builds the objects of a
generation, and `views` parses the observed state, which `cluster_cache` keeps.
"""
