"""Jobs for a site's scheduler or MPI: written to be read, submitted, and followed to their end."""
