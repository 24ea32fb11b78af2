"""Routes of tokens."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from shadowprice import rest
from shadowprice.core.amounts import Duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs.fields import DurationField, PathSegmentName, StrictSpec
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.service import auth
from shadowprice.service.api.requests import JsonBody, OperatorDep, ServiceDep, api_router, problems
from shadowprice.service.clock import SECOND, to_datetime_or_none
from shadowprice.service.problems import ProblemError
from shadowprice.service.resources import build_resource

router = api_router("/v1", "tokens")

MAX_TOKEN_SECONDS: Final = 10 * 365 * 86_400
MAX_LISTED_TOKENS: Final = 1_000
MAX_NOTE_CHARS: Final = 200


def _validity(value: Duration) -> Duration:
    if value.slots or not 0 < value.seconds <= MAX_TOKEN_SECONDS:
        raise ValueError("expected a time of at most ten years; write 90d")
    return value


class TokenRequest(StrictSpec):
    """A token to create: an operator's, or a tenant's."""

    role: rest.TokenRole = "tenant"
    tenant: Annotated[PathSegmentName | None, Field(validate_default=True)] = None
    expires: Annotated[DurationField, AfterValidator(_validity)] | None = None
    note: Annotated[str, Field(max_length=MAX_NOTE_CHARS)] = ""

    @field_validator("tenant")
    @classmethod
    def _check_tenant(cls, tenant: str | None, info: ValidationInfo) -> str | None:
        role = info.data.get("role")
        if role == "tenant" and tenant is None:
            raise ValueError("is missing; name the tenant")
        if role == "operator" and tenant is not None:
            raise ValueError("an operator's token has no tenant; remove it")
        return tenant


@router.get("/tokens")
async def list_tokens(service: ServiceDep, _: OperatorDep) -> rest.TokenList:
    """List tokens without their secrets: the valid ones first, at most 1,000."""
    query = auth.tokens_query(service.require_writer().clock.now()).limit(MAX_LISTED_TOKENS)
    rows = await service.read(lambda connection: connection.execute(query).all())
    return rest.TokenList(tokens=[build_resource(rest.Token, row) for row in rows])


@router.post("/tokens", status_code=201, responses=problems(409))
async def create_token(
    service: ServiceDep,
    _: OperatorDep,
    spec: Annotated[TokenRequest, Depends(JsonBody(TokenRequest))],
) -> rest.NewToken:
    """Create a token. The response is the only one that contains it."""
    cluster = service.require_writer().published.servers.cluster
    if spec.tenant is not None and cluster.tenants and spec.tenant not in cluster.tenant_index:
        hint = hint_for_unknown(
            spec.tenant, cluster.tenant_index, "add it first: PUT /v1/tenants/NAME"
        )
        raise InputError(
            Fault("body.tenant", f"unknown tenant {quote_for_display(spec.tenant)}", hint)
        )
    expires = None
    if spec.expires is not None:
        expires = service.require_writer().clock.now() + int(spec.expires.seconds * SECOND)
    token = auth.new_token()
    number = await service.require_writer().do(
        auth.create_token(token, spec.role, spec.tenant, spec.note, expires)
    )
    service.tokens.add(token, auth.Caller(number, spec.role, spec.tenant), expires)
    until = to_datetime_or_none(expires)
    return build_resource(rest.NewToken, spec, id=number, expires=until, token=token)


@router.delete("/tokens/{number}", status_code=204, responses=problems(404, 409))
async def revoke_token(number: int, service: ServiceDep, caller: OperatorDep) -> None:
    """Revoke a token, with immediate effect."""
    if number == caller.id:
        raise ProblemError("conflict", "a token can't revoke itself; use another operator's token")
    if not 0 < number < 2**53:
        raise ProblemError("not-found", f"no valid token has the id {number}")
    try:
        await service.require_writer().do(auth.revoke_token(number))
    except ProblemError as error:
        # An earlier revocation may have been stored although its request failed.
        if error.code == "not-found":
            service.tokens.remove(number)
        raise
    service.tokens.remove(number)
