"""How ranks exchange tensors: by schedules of messages, and through the memory of their host."""
