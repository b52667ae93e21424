"""A serial script that is a package: ``python -m packaged``."""

from .loop import train  # noqa: TID252 - as packages have it

train()
