"""The store of the service: SQLite in a directory, or PostgreSQL at a URL."""

from shadowprice.service.store.files import StoreError
from shadowprice.service.store.store import UNKNOWN_FORMAT_HINT, Rows, Store

__all__ = ["UNKNOWN_FORMAT_HINT", "Rows", "Store", "StoreError"]
