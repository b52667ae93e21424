"""What may be concluded from one training on several numbers of workers."""
