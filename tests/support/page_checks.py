"""Collects the faults that Chromium finds in a page: by axe-core, broken words, and tables that are cut."""

import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

_WORDS = """
const broken = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  if (!node.parentElement.closest('h1, h2, th, td, li, figcaption, p')) continue;
  if (node.parentElement.closest('script, .command')) continue;
  for (const found of node.data.matchAll(/[\\p{L}\\d]{2,24}/gu)) {
    const range = document.createRange();
    range.setStart(node, found.index);
    range.setEnd(node, found.index + found[0].length);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    if (lines.size > 1) broken.push(found[0]);
  }
}
const small = [...document.querySelectorAll('svg text')]
  .filter(one => one.getBoundingClientRect().height < 8).map(one => one.textContent);
const cut = [...document.querySelectorAll('.wide')]
  .filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent.slice(0, 100));
"""
_CHECK = (
    "<script>"
    + _WORDS
    + """
axe.run(document, {iframes: false}).then(result => {
  const found = {
    faults: result.violations.filter(one => ['serious', 'critical'].includes(one.impact))
      .map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' | ').slice(0, 300)),
    passes: result.passes.map(one => one.id),
    broken, small, cut, width: innerWidth, wide: document.documentElement.scrollWidth,
  };
  const place = document.createElement('pre');
  place.id = 'found';
  place.textContent = JSON.stringify(found);
  document.body.append(place);
});
</script>"""
)


def with_checks(page: Path, out: Path) -> Path:
    """Write a copy of a page that checks itself, and return its path."""
    axe = (files("axe_core_python") / "axe.min.js").read_text()
    text = page.read_text()
    out.write_text(text.replace("</body>", f"<script>{axe}</script>{_CHECK}</body>"))
    return out


def found_in(dom: str) -> dict[str, Any]:
    """Return the faults that the copy has found, from its document after it ran."""
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    return json.loads(html.unescape(found))
