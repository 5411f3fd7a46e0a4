"""Draws the layers of harness/ from the import contracts in pyproject.toml into ARCHITECTURE.md.

`python docs/architecture.py` writes the picture and the table anew; a test compares them with the imports.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "ARCHITECTURE.md"
BLOCK = re.compile(r"(<!-- made by docs/architecture.py -->\n).*?(<!-- end -->)", re.DOTALL)


def contracts() -> list[dict[str, Any]]:
    """The contracts of type `layers`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [
        contract for contract in settings["tool"]["importlinter"]["contracts"] if contract["type"] == "layers"
    ]


def split(layers: list[str]) -> list[list[str]]:
    """The names of each layer, highest layer first."""
    return [[name.strip() for name in layer.split("|")] for layer in layers]


def package_layers() -> list[list[str]]:
    """The packages of harness/ by layer, highest first."""
    (whole,) = (contract for contract in contracts() if "containers" not in contract)
    return [[name.removeprefix("harness.") for name in layer] for layer in split(whole["layers"])]


def picture() -> str:
    """The layers as a mermaid diagram: each box imports only from boxes below its own layer."""
    layers = package_layers()
    lines = ["```mermaid", "flowchart TB"]
    for number, names in enumerate(layers):
        lines.append(f'  subgraph L{number}[" "]')
        lines.append("    direction LR")
        lines.extend(f"    {name}" for name in names)
        lines.append("  end")
    lines.extend(f"  L{number} --> L{number + 1}" for number in range(len(layers) - 1))
    return "\n".join([*lines, "```", ""])


def table() -> str:
    """The layers inside each package, highest first."""
    rows = ["| package | layers inside, highest first |", "|---|---|"]
    for contract in contracts():
        for container in contract.get("containers", ()):
            inside = " → ".join(
                ", ".join(f"`{name}`" for name in names) for names in split(contract["layers"])
            )
            rows.append(f"| `{container.removeprefix('harness.')}` | {inside} |")
    return "\n".join([*rows, ""])


def updated(text: str) -> str:
    """`text` of ARCHITECTURE.md with the picture and the table of today."""
    return BLOCK.sub(lambda found: f"{found[1]}{picture()}\n{table()}{found[2]}", text)


def main() -> int:
    """Rewrite ARCHITECTURE.md."""
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
