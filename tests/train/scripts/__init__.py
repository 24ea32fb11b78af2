"""Training scripts that tests run in processes of their own."""
