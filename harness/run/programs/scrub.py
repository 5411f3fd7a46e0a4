"""Removes terminal control sequences and masks credentials in program output."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.sources.redact import ESCAPES, MASK, mask_secrets

# Shorter values (`1`, `true`, `main`) occur in ordinary text too, and masking them would garble the log.
MINIMUM_SECRET = 6

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|(^|_)KEY(_|$)|APIKEY|ACCESS_KEY", re.IGNORECASE
)
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
# user:password@ and token@ in front of a host.
URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]{1,512}@")


class Scrubber:
    """Removes terminal control sequences; masks credentials, tokens and the secret values of `environ`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        secrets = {value for name, value in environ.items() if SECRET_NAME.search(name)}
        # The longest first, so that a secret that contains another one is masked completely.
        long_enough = [value for value in secrets if len(value) >= MINIMUM_SECRET]
        alternatives = map(re.escape, sorted(long_enough, key=len, reverse=True))
        self._secrets = re.compile("|".join(alternatives)) if long_enough else None

    def __call__(self, text: str) -> str:
        """The cleaned text, with the same lines."""
        if "\x1b" in text:
            # Removing an escape can remove the first letter of a secret or join the parts of one: mask twice.
            text = ESCAPES.sub("", self._masked(text))
        return self._masked(CONTROLS.sub("", text))

    def _masked(self, text: str) -> str:
        if "://" in text:
            text = URL_CREDENTIALS.sub(f"{MASK}@", text)
        text = mask_secrets(text)
        return self._secrets.sub(MASK, text) if self._secrets else text
