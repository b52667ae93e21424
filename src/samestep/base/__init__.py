"""The words everyone shares: errors, the environment, places, units, records, the machine."""
