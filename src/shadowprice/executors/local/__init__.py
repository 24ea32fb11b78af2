"""Jobs as processes of this machine, each generation under a supervisor that outlives the service.

`executor` is what the service holds; `machine` deals out cores and devices; `planning` writes down
what a supervisor is to run; `users` keeps jobs of other users apart; `observing` tells what others
run here.
"""
