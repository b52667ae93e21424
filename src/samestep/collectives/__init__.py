"""How ranks exchange tensors: through the memory of their host, where they share one."""
