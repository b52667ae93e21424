"""Makes each rank of a replicated script run as if it were the only one."""
