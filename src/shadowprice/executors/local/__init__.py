"""The local executor: jobs as processes of this machine.

`executor` implements the contract. `machine` allocates cores and devices, and `launch_plan` builds
the supervisors' plans.
"""
