"""`doctor`: what each finding makes of what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import ALWAYS, Server

from gpuloader.errors import ShardNotFoundError
from gpuloader.images import jpegtran
from gpuloader.shards.remote import RemoteShard
from gpuloader.tools.doctor import (
    cores,
    count_jpeg_engines,
    cuda_versions,
    dali_flavours,
    examine,
    memory,
    open_files,
    processes,
    store,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("affinity", "built_in", "quota", "found", "status"),
    [
        (8, 8, None, "8 of 8", "ok"),
        (8, 8, 8.0, "8 of 8", "ok"),
        (8, 64, 1.5, "8 of 64, but a quota of 1.5 cores' time", "warning"),
    ],
)
def test_cores(affinity: int, built_in: int, quota: float | None, found: str, status: str) -> None:
    finding = cores(affinity, built_in, quota)
    assert (finding.found, finding.status) == (found, status)
    assert ("OMP_NUM_THREADS=2" in finding.advice) == (status == "warning")


@pytest.mark.parametrize(
    ("finding", "found", "status"),
    [
        (memory(64 * GIB, None), "68.7 GB", "ok"),
        (memory(64 * GIB, 4 * GIB), "4.3 GB (a limit; the machine has 68.7 GB)", "ok"),
        (memory(64 * GIB, GIB), "1.1 GB (a limit; the machine has 68.7 GB)", "warning"),
        (memory(GIB, None), "1.1 GB", "warning"),
        (open_files(-1), "no limit", "ok"),
        (open_files(1024), "at most 1,024", "ok"),
        (open_files(256), "at most 256", "warning"),
    ],
)
def test_memory_and_open_files(finding: Any, found: str, status: str) -> None:  # noqa: ANN401
    assert (finding.found, finding.status) == (found, status)


@pytest.mark.parametrize(
    ("environ", "found", "status", "advice"),
    [
        ({}, "rank 0 of 1", "ok", ""),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, "rank 3 of 8", "ok", ""),
        ({"RANK": "3"}, "RANK=3", "failure", "set both RANK and WORLD_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": "8"}, "RANK=x WORLD_SIZE=8", "failure", "invalid literal"),
        # Launched by srun or mpirun, which set variables of their own.
        (
            {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8"},
            "Slurm runs 8 processes, but RANK is not set",
            "warning",
            "set RANK=$SLURM_PROCID and WORLD_SIZE=$SLURM_STEP_NUM_TASKS",
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "rank 0 of 1", "ok", ""),  # a batch script runs once
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8", "RANK": "2", "WORLD_SIZE": "8"}, "rank 2 of 8", "ok", ""),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            "Open MPI runs 2 processes, but RANK is not set",
            "warning",
            "RANK=$OMPI_COMM_WORLD_RANK",
        ),
    ],
)
def test_processes(environ: dict[str, str], found: str, status: str, advice: str) -> None:
    finding = processes(environ)
    assert (finding.found, finding.status) == (found, status)
    assert advice in finding.advice
    assert bool(finding.advice) == (status != "ok")


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ([], []),
        (["torch", "nvidia-nvimgcodec-cu12", "nvidia-dali-cuda120"], ["12.0"]),
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


class NvJpeg:
    """nvJPEG of a GPU, which tells its engines to the hardware backend alone; there is no GPU here."""

    def __init__(self, engines: int, created: int = 0, counted: int = 0) -> None:
        self.engines, self.created, self.counted = engines, created, counted
        self.open = 0

    def nvjpegCreateEx(self, backend: int, device: Any, pinned: Any, flags: int, handle: Any) -> int:  # noqa: ANN401, N802
        assert (device, pinned, flags) == (None, None, 0)
        handle._obj.value = 100 + backend
        self.open += not self.created
        return self.created

    def nvjpegGetHardwareDecoderInfo(self, handle: Any, engines: Any, per_engine: Any) -> int:  # noqa: ANN401, N802
        if handle.value == 103:
            engines._obj.value, per_engine._obj.value = self.engines, 5
        return self.counted

    def nvjpegDestroy(self, handle: Any) -> int:  # noqa: ANN401, N802
        self.open -= 1
        return 0


@pytest.mark.parametrize(
    ("nvjpeg", "said"),
    [
        (NvJpeg(2), "2, each of 5 cores, on GPU 0"),
        (NvJpeg(0), "none on GPU 0"),
        (NvJpeg(2, created=7), "none on GPU 0"),  # NVJPEG_STATUS_ARCH_MISMATCH
        (NvJpeg(2, created=1), "unknown: nvJPEG cannot start (status 1)"),
    ],
)
def test_the_engines_are_those_of_the_hardware_backend(nvjpeg: Any, said: str) -> None:  # noqa: ANN401
    assert count_jpeg_engines(nvjpeg) == said
    assert nvjpeg.open == 0


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'libjpeg-turbo version 9.8.7 (build 20300101)' >&2", "libjpeg-turbo 9.8.7"),
        ("echo \xff >&2; exit 1", "none of libjpeg-turbo; only `gpuloader pack --seekable` needs it: apt install"),
        (None, "none of libjpeg-turbo; only `gpuloader pack --seekable` needs it: apt install"),
    ],
    ids=["is there", "another program", "missing"],
)
def test_jpegtran_is_named_and_none_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, found: str
) -> None:
    program = tmp_path / "jpegtran"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="latin-1")
        program.chmod(0o755)
    monkeypatch.setattr(jpegtran, "PROGRAM", str(program))
    jpegtran.find_version.cache_clear()
    [finding] = [each for each in examine() if each.name == "jpegtran"]
    jpegtran.find_version.cache_clear()
    assert (finding.status, finding.advice) == ("ok", "")
    assert finding.found.startswith(found)


def test_all_is_looked_at_and_what_is_not_ok_has_advice(data: list[Path]) -> None:
    findings = examine(data)
    names = [finding.name for finding in findings]
    for name in ("torch", "DALI", "cores", "memory", "kernels", "jpegtran", "processes", "index folder", "disk"):
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
