"""What the service keeps: SQLite in a directory, or PostgreSQL by its address."""

from shadowprice.service.store.errors import StoreError
from shadowprice.service.store.store import UNKNOWN_FORMAT_HINT, Rows, Store

__all__ = ["UNKNOWN_FORMAT_HINT", "Rows", "Store", "StoreError"]
