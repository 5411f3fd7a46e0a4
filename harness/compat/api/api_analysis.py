"""Find the names that the consumers use and that the pinned versions of their providers do not have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.compat.api.consumers import CONSUMERS
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.analysis_process import serve
from harness.compat.uses.package_pairs import ConsumerAnalysis, Package


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the consumers use that the others do not have: the measurements of check `api`."""
    answers = AnalysisCache(folder=Path(request["cache"]) / "pairs", code=request["code"])
    packages = {
        name: Package(
            name=name,
            version=request["versions"][name],
            file=Path(file),
            changes=request["changes"].get(name, {}),
        )
        for name, file in request["files"].items()
    }
    facts: dict[str, Any] = {
        **{name: request[name] for name in ("not_read", "misfits")},
        "pairs": [],
        "findings": [],
        "uses": {},
        "unparsed": [],
    }
    for consumer in CONSUMERS:
        own = packages.get(consumer.package)
        providers = [packages[name] for name in consumer.providers if name in packages]
        if own is None or not providers:
            continue
        borders = ConsumerAnalysis(own, answers)
        reached = borders.imported(consumer.roots)
        for provider in providers:
            then = request["made_for"].get(own.name, {}).get(provider.name)
            made_for = Package(name=provider.name, version=then[0], file=Path(then[1])) if then else None
            found = borders.check_provider(provider, made_for)
            facts["uses"][own.name] = facts["uses"].get(own.name, 0) + found["uses"]
            facts["unparsed"] = sorted({*facts["unparsed"], *found["unparsed"]})
            facts["pairs"].append([own.name, own.version, provider.name, provider.version])
            for finding in found["findings"]:
                imported = finding["at_import"] and _module(finding["file"]) in reached
                facts["findings"].append(
                    {
                        **finding,
                        "consumer": own.name,
                        "always": finding["breaks"] and imported,
                        "patches": request["patches"].get(finding["file"], []),
                        "last": "",
                    }
                )
    return facts


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


if __name__ == "__main__":
    sys.exit(serve(examine, *sys.argv[1:]))
