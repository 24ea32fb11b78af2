"""What runs jobs: one contract, and an executor for each place that jobs can run in.

`contract` is what the live service talks to; `registry` finds an executor by name; each executor
has a folder of its own and knows the contract and the core only.
"""
