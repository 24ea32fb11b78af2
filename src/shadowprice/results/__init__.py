"""Results of a run for every driver: recorder, tables, accounts, histories and pages."""
