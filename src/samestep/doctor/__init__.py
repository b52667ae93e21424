"""What may hurt a run where it stands: each rank looks, all are compared, rank 0 tells."""
