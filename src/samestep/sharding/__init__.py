"""Which samples each rank sees, and when: pure arithmetic on (order, place, position)."""
