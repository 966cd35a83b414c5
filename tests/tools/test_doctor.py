"""`doctor`: what each finding makes of what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from serving import ALWAYS, Server

from gpuloader.errors import ShardNotFoundError
from gpuloader.shards.remote import RemoteShard
from gpuloader.tools.doctor import cores, cuda_versions, dali_flavours, examine, processes, store


@pytest.mark.parametrize(
    ("affinity", "built_in", "quota", "found", "status"),
    [(8, 8, 8.0, "8 of 8", "ok"), (8, 64, 1.5, "8 of 64, but a quota of 1.5 cores' time", "warning")],
)
def test_cores(affinity: int, built_in: int, quota: float | None, found: str, status: str) -> None:
    finding = cores(affinity, built_in, quota)
    assert (finding.found, finding.status) == (found, status)
    assert ("OMP_NUM_THREADS=2" in finding.advice) == (status == "warning")


@pytest.mark.parametrize(
    ("environ", "found", "status", "advice"),
    [
        ({}, "rank 0 of 1", "ok", ""),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, "rank 3 of 8", "ok", ""),
        ({"RANK": "3"}, "only one of the environment variables RANK and WORLD_SIZE is set", "failure", "torchrun"),
        ({"RANK": "x", "WORLD_SIZE": "8"}, "the environment variable RANK='x' is not an", "failure", "torchrun"),
        # Launched by srun or mpirun, which set variables of their own.
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8"}, "Slurm runs 8 processes", "warning", "RANK=$SLURM_PROCID"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "rank 0 of 1", "ok", ""),  # a batch script runs once
    ],
)
def test_ranks(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], found: str, status: str, advice: str) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    finding = processes()
    assert finding.found.startswith(found)
    assert (finding.status, bool(finding.advice)) == (status, status != "ok")
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ([], []),
        (["nvidia_dali_cuda130", "nvidia-dali-cuda120"], ["12.0", "13.0"]),
        (["nvidia-dali-cuda120-extra", "my-nvidia-dali-cuda120"], []),
    ],
)
def test_dali_is_for_the_cuda_that_its_name_says(distributions: list[str], expected: list[str]) -> None:
    assert sorted(dali_flavours(distributions)) == expected


@pytest.mark.parametrize(
    ("torch", "dali", "status", "advice"),
    [
        ("12.8", "12.0", "ok", ""),
        # What pip takes with `gpuloader[cuda12]` where torch comes for CUDA 13.
        ("13.0", "12.0", "warning", "nvidia-dali-cuda120 nvidia-nvimgcodec-cu12; pip install nvidia-dali-cuda130"),
        ("12.8", "13.0", "warning", "nvidia-dali-cuda130 nvidia-nvimgcodec-cu13; pip install nvidia-dali-cuda120"),
    ],
)
def test_cuda_versions_go_together(torch: str, dali: str, status: str, advice: str) -> None:
    finding = cuda_versions(torch, dali)
    assert (finding.found, finding.status) == (f"torch {torch}, DALI {dali}", status)
    assert advice in finding.advice


def test_all_is_looked_at_and_what_is_not_ok_has_advice(data: list[Path]) -> None:
    findings = examine(data)
    names = [finding.name for finding in findings]
    for name in ("torch", "DALI", "cores", "kernels", "processes", "disk"):
        assert names.count(name) == 1, name
    assert all(finding.found for finding in findings)
    assert all(bool(finding.advice) == (finding.status != "ok") for finding in findings)


@pytest.mark.parametrize(("cuda", "lines"), [("13.0", 1), (None, 0)])
def test_torch_for_cuda_is_compared_with_dali_also_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, lines: int
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert [finding.name for finding in examine()].count("CUDA versions") == lines


@pytest.mark.parametrize(
    ("name", "ranges", "status", "says"),
    [
        ("a.tar", "yes", "ok", r"answers after [\d,]+ ms, sends [\d,]+\.\d MB/s over one connection"),
        ("a.tar", "refused", "warning", r"answers after [\d,]+ ms"),
        ("b.tar", "yes", "failure", r".*/b\.tar.*"),
        ("c.tar", "yes", "failure", r".*/c\.tar.*403.*"),
    ],
)
def test_a_store_is_asked_for_a_shard(tmp_path: Path, name: str, ranges: str, status: str, says: str) -> None:
    for present in ("a.tar", "c.tar"):
        (tmp_path / present).write_bytes(bytes(9 << 20))
    with Server(tmp_path) as server:
        server.ranges = ranges
        server.faults = {(method, "c.tar"): ("403", ALWAYS) for method in ("HEAD", "GET")}
        finding = store(RemoteShard(f"{server.url}/{name}"))
        assert status != "ok" or server.sent_bytes["a.tar"] == 1 + (8 << 20)
    assert (finding.name, finding.status, bool(finding.advice)) == ("store", status, status != "ok")
    assert re.fullmatch(says, finding.found)


def test_of_urls_the_store_is_looked_at_and_no_disk(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        names = [finding.name for finding in examine([f"{server.url}/a.tar", f"{server.url}/b.tar"])]
    assert (names[-1], names.count("store"), names.count("disk")) == ("store", 1, 0)


def test_shards_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShardNotFoundError):
        examine(tmp_path / "nothing.tar")
