from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from harness.run.programs.scrub import Scrubber
from harness.sources.secrets.masking import Masker


def scrubber(**environ: str) -> Scrubber:
    return Scrubber(Masker.of_host(environ))


def test_terminal_control_goes_and_text_stays() -> None:
    scrub = scrubber()
    assert scrub("\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain\x1b(B\ttab\n") == "red plain\ttab\n"
    assert scrub("a\x00b\x07c\x9bd") == "abcd"
    assert scrub("\x1b]0;a title without an end\nkept\n") == "\nkept\n"


def test_credentials_in_addresses_are_masked() -> None:
    scrub = scrubber()
    assert scrub("Looking in https://me:s3cret@index.example/simple now") == (
        "Looking in https://***@index.example/simple now"
    )
    assert scrub("git+https://ghp_token@host/x and https://host/x?a=b@c") == (
        "git+https://***@host/x and https://host/x?***"
    )


def test_values_of_variables_that_nobody_listed_are_masked_and_ordinary_ones_are_not() -> None:
    scrub = scrubber(
        API_TOKEN="abcdefgh",
        db_password="hunter2222",
        SSH_KEY="abcdefghij",
        MY_COMPANY_THING="banana-split",
        SECRET_FLAG="1",
        USER="somebody",
        ANY_VERSION="2.7.1.post2",
        ANY_PATH="/usr/lib:/etc/ssl",
        ANY_WORD="production",
    )
    assert scrub(
        "abcdefghij abcdefgh hunter2222 banana-split 1 somebody 2.7.1.post2 /usr/lib:/etc/ssl production"
    ) == ("*** *** *** *** 1 somebody 2.7.1.post2 /usr/lib:/etc/ssl production")


@given(st.text(), st.text(min_size=6))
@example(text="\x1b]", secret="000000")
def test_a_secret_never_gets_through_and_lines_stay(text: str, secret: str) -> None:
    scrub = scrubber(TOKEN=secret)
    cleaned = scrubber()(secret)
    out = scrub(f"{text}\n{secret}\nend")
    if cleaned == secret and len("".join(secret.split())) >= 6 and set(secret) != {"*"}:
        assert out.splitlines()[-1] == "end"
        assert secret not in out


def test_tokens_are_masked_by_their_form_and_identifiers_are_not() -> None:
    scrub = scrubber()
    assert scrub("login hf_abcdefghijklmnopqrst glpat-abcdefghij0123 AKIAIOSFODNN7EXAMPLE done") == (
        "login *** *** *** done"
    )
    assert scrub("-----BEGIN PRIVATE KEY-----\nMIIE\nvQ==\n-----END PRIVATE KEY-----\nnext") == "***\nnext"
    assert scrub("hf_processor_kwargs hf_rollout.py asia-southeast1-docker") == (
        "hf_processor_kwargs hf_rollout.py asia-southeast1-docker"
    )


def test_an_escape_in_front_or_in_the_middle_hides_no_secret() -> None:
    scrub = scrubber(API_TOKEN="abcdefgh")
    for text in (
        "\x1babcdefgh",
        "\x1b abcdefgh",
        "abcd\x1b[0mefgh",
        "\x1bhf_abcdefghijklmnop",
        "hf_\x1b[1mabcdefghijklmnop",
    ):
        assert "efgh" not in scrub(text)
