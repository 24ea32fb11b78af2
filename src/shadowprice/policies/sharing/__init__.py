"""What tenants are otherwise offered: HiveD's virtual private clusters, Gandiva_fair's shares."""
