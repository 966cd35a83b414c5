"""URLs of stores: which are read, and how they are shown."""

from __future__ import annotations

import importlib
import time

import pytest

from gpuloader.errors import ConfigError
from gpuloader.shards.remote.urls import PROTOCOLS, remote_protocol, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:p@ss@host/a@b.tar", "http://host/a@b.tar"),
        ("'https://host/a.tar?token', s3://bucket/b.tar", "'https://host/a.tar', s3://bucket/b.tar"),
        ("s3://bucket/train-000?.tar", "s3://bucket/train-000?.tar"),
        ("s3://bucket/a.tar?versionId=1", "s3://bucket/a.tar"),
        ("GET /a.tar?X-Amz-Signature=1&x=2 failed", "GET /a.tar failed"),
        ("hf://datasets/user/name@main/a.tar", "hf://datasets/user/name@main/a.tar"),
    ],
)
def test_what_may_be_secret_is_left_out(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("text", ["http://", "?", "://a@", "x?", "?="])
def test_a_store_that_says_much_costs_no_more_than_its_length(text: str) -> None:
    start = time.thread_time()
    assert len(without_secrets(text * 200_000)) <= len(text) * 200_000
    assert time.thread_time() - start < 5  # it takes 0.1 s; the square of the length would take minutes


@pytest.mark.parametrize(
    ("url", "module"),
    [
        ("s3://bucket/a.tar", "s3fs"),
        ("gs://bucket/a.tar", "gcsfs"),
        ("gcs://bucket/a.tar", "gcsfs"),
        ("hf://datasets/user/name/a.tar", "huggingface_hub"),
        ("http://host/a.tar", "fsspec.implementations.http"),
        ("https://host/a.tar", "fsspec.implementations.http"),
    ],
)
def test_each_protocol_has_its_file_system(url: str, module: str) -> None:
    assert remote_protocol(url) in PROTOCOLS
    known = importlib.import_module("fsspec.registry").known_implementations[url.partition("://")[0]]["class"]
    assert known.startswith(module)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a.tar",
        "sftp://host/a.tar",
        "zip://a.tar::http://host/a.zip",
        "simplecache::s3://bucket/a.tar",
        "s3://bucket/a.tar::file:///etc",
        "memory://a.tar",
        "pipe://cat",
        "gopher://user:hunter2@host/a.tar",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not supported: allowed are local paths and s3://") as caught:
        remote_protocol(url)
    assert "hunter2" not in str(caught.value)
