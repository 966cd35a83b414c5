"""What the errors of stores' libraries mean."""

from __future__ import annotations

import pytest
from aiohttp import ClientResponseError, NonHttpUrlClientError
from botocore.exceptions import ClientError, NoCredentialsError
from multidict import CIMultiDict

from gpuloader.shards.remote.failures import explain, is_final, requested_pause_seconds, status_of


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("-7", 0),
        ("99999999999999999999", 120),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 120),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 -9999", 0),
        ("soon", 0),
        ("\udcff9", 0),  # as aiohttp reads what is not UTF-8
        ("Wed, 21 Oct " + "9" * 5000 + " 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2015 " + "9" * 5000 + ":28:00 GMT", 0),
        ("", 0),
    ],
)
def test_how_long_a_pause_is_asked_for(said: str, seconds: float) -> None:
    error = ClientResponseError(None, (), status=503, headers=CIMultiDict({"Retry-After": said}))  # type: ignore[arg-type]
    assert requested_pause_seconds(error) == seconds


def test_s3s_errors_say_their_status_and_pause() -> None:
    answer = {"Error": {}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "7"}}}
    error = OSError("Please reduce your request rate")  # as s3fs raises it
    error.__cause__ = ClientError(answer, "GetObject")  # type: ignore[arg-type]
    assert (status_of(error), requested_pause_seconds(error)) == (503, 7)


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (NonHttpUrlClientError("ftp://a"), True),
        (NoCredentialsError(), True),
        (PermissionError(), True),
        (ClientResponseError(None, (), status=400), True),  # type: ignore[arg-type]
        (ClientResponseError(None, (), status=429), False),  # type: ignore[arg-type]
        (OSError(), False),
    ],
)
def test_errors_after_which_trying_again_changes_nothing(error: Exception, final: bool) -> None:
    assert is_final(error) == final


def test_what_a_store_says_is_shortened_and_without_secrets() -> None:
    url = "https://user:secret@host/a.tar?signature=secret"
    for said in ("x" * 5_000_000, f"{url} " * 100_000, f"https://user:{'secret' * 100_000}@host/"):
        text = explain(OSError(f"it said {said}"), url)
        assert text.startswith("OSError: it said ")
        assert len(text) <= 1000
        assert "secret" not in text
