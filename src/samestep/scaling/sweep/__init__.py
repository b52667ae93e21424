"""Plans, executes and collects the runs of a scaling study."""
