"""What an API server can do that not all can, by what it says of itself, never by its version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError

_POD: Final = "io.k8s.api.core.v1.PodSpec"


async def has_gates(connection: Connection) -> bool:
    """Return whether pods can wait for each other before any is placed (scheduling gates).

    Raises
    ------
    ApiError
        If nobody answers.
    """
    try:
        index = await connection.get("/openapi/v3")
        where = index["paths"]["api/v1"]["serverRelativeURL"]
        text = await connection.text(where)
    except ApiError as error:
        if error.passing:
            raise
        return False  # servers before 1.24 have no such documents, nor gates
    except (KeyError, TypeError):
        return False
    return gates_in(await asyncio.to_thread(json.loads, text))


def gates_in(document: Mapping[str, Any]) -> bool:
    """Return whether a server's own description of pods knows scheduling gates."""
    try:
        return "schedulingGates" in document["components"]["schemas"][_POD]["properties"]
    except (KeyError, TypeError):
        return False
