"""What the OpenAPI document says of each route: bodies, answers, examples.

A module for each module of routes; `job` and `route` hold what they share.
"""
