"""The REST API, version 1, as FastAPI serves it."""

from shadowprice.service.api.app import create_app

__all__ = ["create_app"]
