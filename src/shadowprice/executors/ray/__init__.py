"""The Ray executor: each process of a job runs under a detached, named actor.

`executor` implements the contract and doesn't import ray. `bridge` is a separate process that talks
to Ray, so that a failing raylet or head can't end the service; `bridge_client` is its client.
`agent` is the code of the actors on the nodes. It uses the local executor's supervisor, whose
sources are sent along, so that nodes need only Ray. `launch_plan` maps Ray nodes to servers, and
`controller` drives a generation.
"""
