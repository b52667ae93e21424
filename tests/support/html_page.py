"""Parses an HTML page: checks that it is well-formed, and collects its references and texts."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "wbr", "hr", "img"}


class HtmlPage(HTMLParser):
    """Checks that tags are closed in order, and collects what a page refers to and shows."""

    def __init__(self, text):
        super().__init__()
        self.open, self.refers, self.tags, self.texts, self.labels = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.refers += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.labels += [value for name, value in attrs if name == "aria-label"]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
