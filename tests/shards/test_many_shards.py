"""More shards than files may be open."""

import subprocess
import sys
import tarfile
from pathlib import Path

from making import jpeg

SHARDS = 10_000

EPOCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from gpuloader import GPULoader
loader = GPULoader(sys.argv[1], 250, None, preset="cifar10", last_batch="partial", output="dict")
seen = [index for batch in loader for index in batch["index"].tolist()]
print(len(seen), len(set(seen)))
"""


def member(name: str, data: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    return entry.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def test_ten_thousand_shards_are_read_with_a_thousand_descriptors(tmp_path: Path) -> None:
    image = jpeg(32, 32)
    for number in range(SHARDS):
        shard = member(f"{number:05d}.jpg", image) + member(f"{number:05d}.cls", b"3") + bytes(2 * tarfile.BLOCKSIZE)
        (tmp_path / f"train-{number:05d}.tar").write_bytes(shard)
    result = subprocess.run([sys.executable, "-c", EPOCH, tmp_path], capture_output=True, text=True, check=False)
    assert result.stdout == f"{SHARDS} {SHARDS}\n", result.stderr
