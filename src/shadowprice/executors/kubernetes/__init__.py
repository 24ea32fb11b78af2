"""Jobs as pods of a Kubernetes cluster, its nodes the servers.

`executor` gives the orders, `records` keeps them in the API server, `driving` carries a generation
from its order to its end, `pods` says what is asked for and `views` what became of it.
"""
