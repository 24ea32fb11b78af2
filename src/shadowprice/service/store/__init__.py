"""The store of the service: SQLite in a directory, or PostgreSQL at a URL."""

from shadowprice.service.store.files import StoreError
from shadowprice.service.store.store import FORMAT_KEY, STORE_FORMAT, Rows, Store

__all__ = ["FORMAT_KEY", "STORE_FORMAT", "Rows", "Store", "StoreError"]
