"""More shards than files may be open."""

from pathlib import Path

import pytest
from making import jpeg
from tar_bytes import END, member
from warm import warm

SHARDS = 2_500

EPOCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from gpuloader import GPULoader
loader = GPULoader(sys.argv[1], 250, None, preset="cifar10", last_batch="partial", output="dict")
seen = [index for batch in loader for index in batch["index"].tolist()]
print(len(seen), len(set(seen)))
"""


@pytest.mark.slow(kept=0)
def test_more_shards_are_read_than_descriptors_are_allowed(tmp_path: Path) -> None:
    image = jpeg(32, 32)
    first = tmp_path / "train-00000.tar"
    first.write_bytes(member("a.jpg", image) + member("a.cls", b"3") + END)
    for number in range(1, SHARDS):
        (tmp_path / f"train-{number:05d}.tar").hardlink_to(first)
    result = warm().run(EPOCH, tmp_path)
    assert result.stdout == f"{SHARDS} {SHARDS}\n", result.stderr
