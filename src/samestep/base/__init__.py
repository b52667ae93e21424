"""Holds what every package uses: errors, the environment, ranks, units, records, the machine."""
