"""Detection of optional features of the API server, from its OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError

_POD: Final = "io.k8s.api.core.v1.PodSpec"


async def supports_scheduling_gates(connection: ApiClient) -> bool:
    """Return whether the API server supports scheduling gates of pods.

    With them, all pods of a generation can exist before any is scheduled.
    """
    try:
        index = await connection.get("/openapi/v3")
        path = index["paths"]["api/v1"]["serverRelativeURL"]
        text = await connection.text(path)
    except ApiError as error:
        if error.passing:
            raise
        return False  # before 1.24: no OpenAPI v3 and no gates
    except (KeyError, TypeError):
        return False
    return schema_has_scheduling_gates(await asyncio.to_thread(json.loads, text))


def schema_has_scheduling_gates(document: Mapping[str, Any]) -> bool:
    """Return whether the pod schema of an OpenAPI document has scheduling gates."""
    try:
        return "schedulingGates" in document["components"]["schemas"][_POD]["properties"]
    except (KeyError, TypeError):
        return False
