"""What tenants hold and pay: accounts, what events cost, grants, and statements of all of it."""
