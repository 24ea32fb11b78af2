"""Migrations, one module for each version of the tables."""
