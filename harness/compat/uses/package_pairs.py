"""What one package's uses of another come to. Answers are kept by content: a pair is looked at once."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.compat.surface.analysis_cache import Shelf
from harness.compat.surface.api_surface import Surface
from harness.compat.surface.own_imports import imported_modules
from harness.compat.surface.syntax_walk import parse
from harness.compat.uses.package_uses import Reach, reach
from harness.compat.uses.use import Reference
from harness.compat.uses.use_check import check_border
from harness.compat.uses.use_visitor import references_in
from harness.digest import digest_bytes, digest_file, digest_json

#: What one imports of the packages that uses are looked up in: a consumer is read once for all of them.
PROVIDERS = frozenset({"ray", "tensordict", "torch", "torch_npu", "transformers", "vllm"})


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers in a folder, each under the digest of its question and of all that it was read from.

    code: digest of the code that answers; another code asks again.
    """

    folder: Path
    code: str

    def kept(self, question: str, about: Sequence[str], make: Callable[[], Any]) -> Any:
        """The answer (JSON), made when it is not there yet or cannot be read."""
        key = digest_json([question, self.code, list(sys.version_info[:2]), list(about)])
        file = self.folder / f"{key.removeprefix('sha256:')}.json"
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as temporary:
            json.dump(answer, temporary)
        # Whoever comes second writes the same.
        Path(temporary.name).replace(file)
        return answer

    def kept_many(self, questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The answers (JSON) to many small questions, those made that are not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = digest_json([self.code, list(sys.version_info[:2])])
        with Shelf(self.folder / "files.sqlite", about) as shelf:
            known = shelf.get(questions)
            made = {key: make() for key, make in questions.items() if key not in known}
            shelf.put(made)
        return {**known, **made}


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package by its zip of sources; `changes`: member -> text that our patches put in its place."""

    name: str
    version: str
    file: Path
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    @property
    def top(self) -> str:
        """The name one imports."""
        return self.name.replace("-", "_")

    @cached_property
    def digest(self) -> str:
        """Digest of what the sources are, without the changes."""
        return digest_file(self.file)

    @cached_property
    def surface(self) -> Surface:
        """Its modules, read when somebody asks."""
        return Surface(self.file)

    @cached_property
    def patched(self) -> Surface:
        """The same with the changes."""
        return Surface(self.file, {member: text.encode() for member, text in self.changes.items()})

    def reach(self, answers: Answers) -> Reach:
        """Every use of the providers that are ever asked about, without the changes."""
        kept = answers.kept(
            "reach",
            [self.digest, *sorted(PROVIDERS)],
            lambda: reach(self.surface, PROVIDERS, answers.kept_many).to_json(),
        )
        return Reach.from_json(kept)


class Borders:
    """One consumer's uses of several providers, each pair from the store or newly looked at."""

    def __init__(self, consumer: Package, answers: Answers) -> None:
        self._consumer = consumer
        self._answers = answers

    @cached_property
    def _reach(self) -> Reach:
        return self._consumer.reach(self._answers)

    def with_provider(self, provider: Package, made_for: Package | None) -> dict[str, Any]:
        """`uses`: how many; `findings`: those this provider does not bear, with our patches in place.

        `unparsed`: files of the consumer that this Python cannot parse and that were not looked at.
        """
        consumer = self._consumer
        about = [consumer.digest, provider.label, provider.digest, made_for.digest if made_for else ""]
        found = self._answers.kept("pair", about, lambda: self._look(provider, made_for))
        if not consumer.changes:
            return dict(found)
        changed = [[member, digest_bytes(text.encode())] for member, text in sorted(consumer.changes.items())]
        ours = self._answers.kept(
            "patched", [*about, digest_json(changed)], lambda: self._look_at_changes(provider, made_for)
        )
        kept = [finding for finding in found["findings"] if finding["file"] not in consumer.changes]
        return {**found, "findings": kept + ours}

    def _look(self, provider: Package, made_for: Package | None) -> dict[str, Any]:
        uses = [use for use in self._reach.uses if use.target.partition(".")[0] == provider.top]
        return {
            "uses": len(uses),
            "unparsed": list(self._reach.unparsed),
            "findings": self._findings(uses, provider, made_for, self._consumer.surface),
        }

    def _look_at_changes(self, provider: Package, made_for: Package | None) -> list[dict[str, Any]]:
        uses: list[Reference] = []
        for module, file in self._consumer.patched.files():
            if file in self._consumer.changes:
                source = self._consumer.patched.source(module)
                tree = parse(source)
                uses += references_in(tree, source, module, file, {provider.top}) if tree else ()
        return self._findings(uses, provider, made_for, self._consumer.patched)

    @staticmethod
    def _findings(
        uses: Sequence[Reference], provider: Package, made_for: Package | None, consumer: Surface
    ) -> list[dict[str, Any]]:
        then = {provider.top: made_for.surface} if made_for else {}
        found = check_border(uses, {provider.top: (provider.label, provider.surface)}, consumer, then)
        return [finding.to_json() for finding in found]

    def imported(self, roots: tuple[str, ...]) -> frozenset[str]:
        """The consumer's modules that importing the roots imports, unless a guard stands before it."""
        about = [self._consumer.digest, *roots]
        found = self._answers.kept(
            "imported",
            about,
            lambda: sorted(imported_modules(self._consumer.surface, roots, self._reach.imports)),
        )
        return frozenset(found)
