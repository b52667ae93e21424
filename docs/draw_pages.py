"""Takes the pictures of samestep's pages that the documentation shows; needs Chromium.

python docs/draw_pages.py NAME=PAGE.html ...    writes docs/images/NAME-1280.png and NAME-1280-dark.png
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

from samestep.report.page import HEADLESS, browser

IMAGES = Path(__file__).parent / "images"
_WIDTH = 1280
_MARGIN = 16  # pixels of background that are left below a page
_HIGHEST = 8000
_COLORS = 96
"""Colors of a picture: charts and text have few, and the file is a third as large."""
_DARK = "--blink-settings=preferredColorScheme=0"


def screenshot(page: Path, *flags: str) -> Image.Image:
    """Return a page as a window of 1280 pixels shows it, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.html"
        frame.write_text(
            f'<body style="margin:0"><iframe src="{page.absolute().as_uri()}" '
            f'style="border:0;width:{_WIDTH}px;height:{_HIGHEST}px"></iframe>'
        )
        picture = Path(folder) / "page.png"
        size = (f"--window-size={_WIDTH},{_HIGHEST}", "--hide-scrollbars", f"--screenshot={picture}")
        words = [browser(), *HEADLESS, f"--user-data-dir={folder}/profile", *size, *flags, frame.as_uri()]
        subprocess.run(words, check=True, capture_output=True)
        with Image.open(picture) as found:
            return cropped(found.convert("RGB").crop((0, 0, _WIDTH, _HIGHEST)))


def cropped(picture: Image.Image) -> Image.Image:
    """Return a picture without the empty rows at its end."""
    background = Image.new("RGB", picture.size, picture.getpixel((0, picture.height - 1)))
    box = ImageChops.difference(picture, background).getbbox()
    end = picture.height if box is None else min(picture.height, box[3] + _MARGIN)
    return picture.crop((0, 0, picture.width, end))


def main() -> None:
    """Take the pictures of the pages that the arguments name."""
    for argument in sys.argv[1:]:
        name, _, page = argument.partition("=")
        for suffix, flags in (("", ()), ("-dark", (_DARK,))):
            picture = screenshot(Path(page), *flags)
            path = IMAGES / f"{name}-{_WIDTH}{suffix}.png"
            picture.quantize(_COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
            sys.stdout.write(f"{path}: {picture.width} x {picture.height}\n")


if __name__ == "__main__":
    main()
