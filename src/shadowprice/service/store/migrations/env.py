"""Alembic's environment script: runs the migrations on the store's connection."""

from alembic import context

from shadowprice.service.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
