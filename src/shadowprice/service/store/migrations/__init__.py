"""Migrations of the store, run by Alembic when a store is opened."""
