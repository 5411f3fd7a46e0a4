"""Removes terminal control sequences and secrets from program output."""

from __future__ import annotations

import re

from harness.sources.redact import ESCAPES
from harness.sources.secrets.masking import MaskedStream, Masker

CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")


class Scrubber:
    """Removes terminal control sequences, and masks secrets (see `Masker`)."""

    def __init__(self, masker: Masker) -> None:
        self.masker = masker

    def __call__(self, text: str) -> str:
        """The cleaned text, with the same lines."""
        return self.masker.text(self.without_controls(text))

    def stream(self) -> ScrubbedStream:
        """A new stream of lines to clean."""
        return ScrubbedStream(self)

    def without_controls(self, text: str) -> str:
        """The text without terminal control sequences; a secret with such sequences inside is masked."""
        if "\x1b" in text:
            # Removing an escape can remove the first letter of a secret or join the parts of one: mask twice.
            text = ESCAPES.sub("", self.masker.text(text))
        return CONTROLS.sub("", text)


class ScrubbedStream(MaskedStream):
    """Cleans lines that arrive one after the other; see `MaskedStream`."""

    def __init__(self, scrubber: Scrubber) -> None:
        super().__init__(scrubber.masker)
        self._scrubber = scrubber

    def feed(self, text: str) -> str:
        """The cleaned lines that can be written now."""
        return super().feed(self._scrubber.without_controls(text))
