"""A typed Python client of the live service, synchronous and asynchronous.

>>> from shadowprice.client import Client
>>> with Client() as client:  # doctest: +SKIP
...     job = client.submit({"name": "a", "worker": {"gpu": 1}, ...})
...     client.wait(job.name).state
'finished'
"""

from shadowprice.client.asynchronous import AsyncClient
from shadowprice.client.calls import Page, SubmitProblem, SubmitResult
from shadowprice.client.endpoints import Endpoint
from shadowprice.client.errors import ServiceError, ServiceUnreachableError
from shadowprice.client.synchronous import Client
from shadowprice.rest.jobs import (
    Event,
    Generation,
    Job,
    JobHistory,
    LogChunk,
    ProgressPoint,
    Quote,
)
from shadowprice.rest.monitoring import PriceSlot, WhatIf
from shadowprice.rest.ops import ServiceStatus
from shadowprice.rest.servers import Server
from shadowprice.rest.tenants import AccountEntry, Statement, Tenant
from shadowprice.rest.tokens import NewToken, Token

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
