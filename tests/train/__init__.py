"""What needs torch: `make test-train`."""
