"""The papers' figures and tables, each declared as an experiment."""
