"""The live service from Python: typed, synchronous and asynchronous.

>>> from shadowprice.client import Client
>>> with Client() as client:  # doctest: +SKIP
...     job = client.submit({"name": "a", "worker": {"gpu": 1}, ...})
...     client.wait(job.name).state
'finished'
"""

from shadowprice.client.asynchronous import AsyncClient
from shadowprice.client.calls import Batch
from shadowprice.client.errors import ServiceError, UnreachableError
from shadowprice.client.records import (
    Entry,
    Event,
    Generation,
    Job,
    LogPiece,
    Page,
    Point,
    PriceSlot,
    Quote,
    Server,
    Statement,
    Story,
    Tenant,
    Token,
)
from shadowprice.client.servers import Address
from shadowprice.client.synchronous import Client

__all__ = [
    "Address",
    "AsyncClient",
    "Batch",
    "Client",
    "Entry",
    "Event",
    "Generation",
    "Job",
    "LogPiece",
    "Page",
    "Point",
    "PriceSlot",
    "Quote",
    "Server",
    "ServiceError",
    "Statement",
    "Story",
    "Tenant",
    "Token",
    "UnreachableError",
]
