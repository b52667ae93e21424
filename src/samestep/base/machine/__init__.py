"""Describes the machine of this process: cores, memory, control groups, network interfaces, accelerators."""
