"""The Kubernetes executor: jobs run as pods of a cluster, whose nodes are the servers.

`executor` implements the contract and `records` stores commands in the API server. `driving` is the
controller of one generation. `pods` builds the objects of a generation, and `views` parses the
observed state.
"""
