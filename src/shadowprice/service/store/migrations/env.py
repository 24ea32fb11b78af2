"""What Alembic runs: the migrations, on the connection that the store hands in."""

from alembic import context

from shadowprice.service.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
