"""Client of a Kubernetes API server: connections, informers, leases.

Objects are mappings as the server sends them. The client library is only imported when a connection
is opened.
"""
