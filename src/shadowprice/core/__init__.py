"""The scheduling vocabulary: cluster, job, utility, schedule, ledger and the policy protocol."""
