"""Collectives, as schedules of messages between ranks or through the shared memory of one host."""
