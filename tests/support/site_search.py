"""Ranks the sections of a built site's search index as the site's search does, closely enough to test titles.

The site's search (lunr) scores a field by BM25 and multiplies that of the title by a boost.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path

_BOOSTS = {"title": 1e3, "text": 1.0}
_WORD = re.compile(r"[a-z0-9&]+")
_K1, _B = 1.2, 0.75


def words(text):
    """Return the words of a text without tags, each without the endings of plural and of -ing."""
    plain = re.sub(r"<[^>]+>|&amp;", lambda found: "&" if found[0] == "&amp;" else " ", text).lower()
    return [re.sub(r"(?<=\w{3})(?:ing|s|e)$", "", word) for word in _WORD.findall(plain)]


def rank(index: Path, query: str) -> list[str]:
    """Return the locations of all pages that have a word of `query`, the best first, each page once."""
    documents = json.loads(index.read_text())["docs"]
    fields = {name: [Counter(words(one[name])) for one in documents] for name in _BOOSTS}
    scores = [0.0] * len(documents)
    for name, counts in fields.items():
        mean = sum(one.total() for one in counts) / len(counts)
        for word in words(query):
            having = sum(word in one for one in counts)
            rarity = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            for number, one in enumerate(counts):
                length = 1 - _B + _B * one.total() / mean
                scores[number] += (
                    _BOOSTS[name] * rarity * one[word] * (_K1 + 1) / (one[word] + _K1 * length)
                    if one[word]
                    else 0
                )
    order = sorted(range(len(documents)), key=lambda number: -scores[number])
    pages = [documents[number]["location"].partition("#")[0] for number in order if scores[number]]
    return list(dict.fromkeys(pages))
