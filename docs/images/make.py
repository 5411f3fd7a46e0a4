"""Makes the pictures of the documentation from a report: `python docs/images/make.py reports`.

Needs Debian's chromium and chromium-driver, a Chinese font (fonts-noto-cjk), and selenium. Writes report.png,
report-zh.png, report-dark.png, report-phone.png, report-phone-zh.png, numerics.png, convergence.png, and
cell.png (one cell, if named).
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-sync",
    "--hide-scrollbars",
)
#: The width of many phones, which is less than the least width of a window.
PHONE = (390, 1000)
#: Until the texts are there in Chinese, and the rows in sight are drawn.
SETTLED = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 1500)"


@contextmanager
def browser(chromium: str, chromedriver: str) -> Iterator[Any]:
    """Headless Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield driver
    finally:
        driver.quit()


def picture(driver: Any, page: str, target: Path, width: int, height: int) -> None:
    """Take one picture; one pixel for each CSS pixel keeps it small."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get("about:blank")
    driver.get(page)
    driver.execute_async_script(SETTLED)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    target.write_bytes(base64.b64decode(shot["data"]))


def main() -> int:
    """Read the arguments, take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, help="the folder of a report")
    parser.add_argument("--cell", default="", help="also take cells/CELL.html")
    parser.add_argument("--size", default="1350x1050", help="of the picture, in CSS pixels")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        print("chromium is not installed (Debian: apt-get install chromium chromium-driver)", file=sys.stderr)
        return 2
    width, height = (int(part) for part in options.size.split("x"))
    laptop = (width, height)
    pictures = [
        ("report", "index.html#theme=light&lang=en", laptop),
        ("report-zh", "index.html#theme=light&lang=zh", laptop),
        ("report-dark", "index.html#theme=dark&lang=en", laptop),
        ("report-phone", "index.html#theme=light&lang=en", PHONE),
        ("report-phone-zh", "index.html#theme=light&lang=zh", PHONE),
        ("numerics", "numerics.html#theme=light&lang=en", laptop),
        ("convergence", "convergence.html#theme=light&lang=en", laptop),
    ]
    if options.cell:
        pictures.append(("cell", f"cells/{options.cell}.html#theme=light&lang=en", laptop))
    with browser(chromium, chromedriver) as driver:
        for name, page, (wide, high) in pictures:
            address, _, state = page.partition("#")
            where = (options.reports.resolve() / address).as_uri()
            picture(driver, f"{where}#{state}", options.out / f"{name}.png", wide, high)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
