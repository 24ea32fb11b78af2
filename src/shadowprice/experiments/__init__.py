"""The papers' figures and tables, each a declared experiment."""
