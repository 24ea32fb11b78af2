"""A typed Python client of the live service, synchronous and asynchronous.

>>> from shadowprice.client import Client
>>> with Client() as client:  # doctest: +SKIP
...     job = client.submit({"name": "a", "worker": {"gpu": 1}, ...})
...     client.wait(job.name).state
'finished'
"""

from shadowprice.client.calls import (
    Page,
    ServiceError,
    ServiceUnreachableError,
    SubmitProblem,
    SubmitResult,
)
from shadowprice.client.clients import AsyncClient, Client
from shadowprice.client.endpoints import Endpoint
from shadowprice.rest import (
    AccountEntry,
    Event,
    Generation,
    Job,
    JobHistory,
    LogChunk,
    NewToken,
    PriceSlot,
    ProgressPoint,
    Quote,
    Server,
    ServiceStatus,
    Statement,
    Tenant,
    Token,
    WhatIf,
)

__all__ = [
    "AccountEntry",
    "AsyncClient",
    "Client",
    "Endpoint",
    "Event",
    "Generation",
    "Job",
    "JobHistory",
    "LogChunk",
    "NewToken",
    "Page",
    "PriceSlot",
    "ProgressPoint",
    "Quote",
    "Server",
    "ServiceError",
    "ServiceStatus",
    "ServiceUnreachableError",
    "Statement",
    "SubmitProblem",
    "SubmitResult",
    "Tenant",
    "Token",
    "WhatIf",
]
