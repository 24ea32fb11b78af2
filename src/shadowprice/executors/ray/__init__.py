"""Jobs on a Ray cluster: one detached actor a process, found again by name.

`executor` is what the service holds, and imports no ray; `bridge` is a process of its own that
speaks to Ray, so that what ends a Ray driver (a raylet, a head that goes away) ends no service.
`agent` is what runs on the nodes: an actor a process, over the local executor's supervisor, which
`bundle` brings along so that nodes need nothing but Ray. `nodes` and `parts` are pure: what a node
is to a scheduler, and how a generation ended by how its processes did.
"""
