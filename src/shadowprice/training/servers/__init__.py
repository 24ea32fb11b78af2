"""Training with parameter servers: the workflow of the papers, asynchronous or in step.

Servers keep the model, divided evenly; workers are dealt chunks of the data, push gradients after
each mini-batch and pull parameters. `run` is all that a script calls.
"""
