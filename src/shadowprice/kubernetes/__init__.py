"""What speaks to a Kubernetes API server: connections, informers, leases.

Objects are what the server sends: mappings, by the names of the API. The library is imported when a
connection is opened, never before.
"""
