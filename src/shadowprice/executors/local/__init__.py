"""The local executor: jobs as processes of this machine.

`executor` implements the contract. `machine` allocates cores and devices, `planning` builds the
supervisors' plans, `users` isolates jobs of other users, and `observing` finds jobs of other
schedulers.
"""
