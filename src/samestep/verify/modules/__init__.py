"""Names the module in which a step on several workers first differs from that on one."""
