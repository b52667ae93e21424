"""Decides which values of a store to fetch together, and keeps them for the reads that follow.

To connect n ranks, Gloo on each rank waits for the address of every rank, at keys that end in the rank's
number, and then gets it: 2 n requests on each of n ranks. Here a wait fetches the values as well, and those
of other ranks with it. Every rank posts its own value of such a series before it waits for another rank's; so
a rank that has posted its own one can wait for several others at once.
"""

from collections.abc import Sequence

_AT_ONCE = 8
"""Ranks whose values are fetched together; Gloo's values grow with the number of ranks."""


class ReadAhead:
    """Values that waits have fetched and that no get has returned, of keys that are posted only once."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = str(rank), size
        self._series: set[str] = set()
        self._values: dict[str, bytes] = {}

    def posted(self, key: str) -> None:
        """Note that this rank posts a value."""
        series, _, number = key.rpartition("/")
        if number == self._rank:
            self._series.add(series)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys to fetch at a wait for `keys`; none if all of these have been fetched.

        >>> ahead = ReadAhead(rank=1, size=3)
        >>> ahead.missing(["address/0"])
        ['address/0']
        >>> ahead.posted("address/1")
        >>> ahead.missing(["address/0", "other"])
        ['address/0', 'address/1', 'address/2', 'other']
        """
        found = [other for key in keys if key not in self._values for other in (key, *self._others(key))]
        return list(dict.fromkeys(found))

    def fetched(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Keep the values of these keys."""
        self._values.update(zip(keys, values, strict=True))

    def taken(self, key: str) -> bytes | None:
        """Return a fetched value, once; None if there is none."""
        return self._values.pop(key, None)

    def _others(self, key: str) -> list[str]:
        """Return the keys of the same series that are fetched with `key`."""
        series, _, number = key.rpartition("/")
        if series not in self._series or not number.isdecimal():
            return []
        first = int(number) - int(number) % _AT_ONCE
        return [f"{series}/{rank}" for rank in range(first, min(first + _AT_ONCE, self._size))]
