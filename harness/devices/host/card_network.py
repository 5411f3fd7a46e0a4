"""The network ports of the cards, which HCCL uses between hosts, as `hccn_tool` reports them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.devices.host.host_inspection import HostView

#: Where the driver installs hccn_tool, below its folder; used when it is not on PATH.
TOOL = Path("tools/hccn_tool")
TOOL_TIMEOUT_S = 5.0
ADDRESS = re.compile(r"ipaddr\s*:\s*(\S+)")
LINK = re.compile(r"link status\s*:\s*(\w+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CardNetwork:
    """The state of the cards' ports.

    links: davinci number -> "" when the port is up and has an address, otherwise the problem. error: why
    hccn_tool could not report about all cards, "" when it could.
    """

    links: Mapping[int, str] = field(default_factory=dict)
    error: str = ""

    @property
    def up(self) -> tuple[int, ...]:
        """Cards that can reach other hosts."""
        return tuple(card for card, problem in self.links.items() if not problem)


def inspect_card_network(view: HostView, cards: Sequence[int]) -> CardNetwork:
    """Run hccn_tool once or twice for each card; stops at the first card for which it cannot be run."""
    tool = view.driver / TOOL
    program = view.which("hccn_tool") or (str(tool) if tool.is_file() else None)
    if program is None:
        return CardNetwork(error="hccn_tool is not installed on this host")
    links: dict[int, str] = {}
    for card in cards:
        output = _run_tool(program, card, "ip", view.environ)
        if output is None:
            return CardNetwork(links=links, error=f"hccn_tool could not be run for card {card}")
        if not ADDRESS.search(output):
            links[card] = "no address"
            continue
        link = LINK.search(_run_tool(program, card, "link", view.environ) or "")
        state = link.group(1).upper() if link else "unknown"
        links[card] = "" if state == "UP" else f"link is {state}"
    return CardNetwork(links=links)


def _run_tool(program: str, card: int, what: str, environ: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(
            [program, "-i", str(card), f"-{what}", "-g"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_TIMEOUT_S,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr
