"""Holds the ranks of one job: launcher detection, rendezvous, stores, process groups and collectives."""
