"""What may be concluded from several runs of one script."""
