"""Programs that show a training while it runs; what is always written stands in the run folder."""
