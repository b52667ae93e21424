"""The ways to start a job, one file each."""
