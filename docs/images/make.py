"""Makes the pictures of the README from a report: `python docs/images/make.py reports`.

Needs Debian's chromium, and a Chinese font (fonts-wqy-microhei). Writes report.png, report-zh.png,
report-dark.png, report-phone.png, numerics.png, convergence.png, and cell.png (one cell, if named).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-sync",
    "--hide-scrollbars",
    # Tiles that are not painted yet are missing in the picture.
    "--virtual-time-budget=5000",
    "--run-all-compositor-stages-before-draw",
)


def picture(chromium: str, page: str, target: Path, width: int, height: int) -> None:
    """Take one picture; one pixel for each CSS pixel keeps it small."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                "--virtual-time-budget=2000",
                f"--screenshot={target}",
                page,
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


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
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed (Debian: apt-get install chromium)", file=sys.stderr)
        return 2
    width, height = (int(part) for part in options.size.split("x"))
    folder = options.reports.resolve()
    phone = (500, 1000)
    pictures = (
        ("report", "index.html#theme=light", (width, height)),
        ("report-zh", "index.html#theme=light&lang=zh", (width, height)),
        ("report-dark", "index.html#theme=dark", (width, height)),
        ("report-phone", "index.html#theme=light", phone),
        ("numerics", "numerics.html#theme=light", (width, height)),
        ("convergence", "convergence.html#theme=light", (width, height)),
    )
    for name, page, (wide, high) in pictures:
        address, _, state = page.partition("#")
        picture(chromium, f"{(folder / address).as_uri()}#{state}", options.out / f"{name}.png", wide, high)
    if options.cell:
        page = (folder / "cells" / f"{options.cell}.html").as_uri()
        picture(chromium, f"{page}#theme=light", options.out / "cell.png", width, height)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
