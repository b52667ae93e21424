"""A function that reads a setting."""

from support.factors import settings


def scaled(x):
    return x * settings.FACTOR
