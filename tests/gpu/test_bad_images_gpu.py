"""The zoo of images on a GPU: its decoders may judge a damaged image otherwise, but none may end the run."""

from pathlib import Path

import pytest
from bad_images import zoo
from delivering import deliver, process
from making import jpeg, write_shard

from gpuloader import BadImages

BATCH = 16


@pytest.mark.parametrize("between", [0, 3])  # whole images between those of the zoo
def test_no_image_ends_the_run_or_takes_another_with_it(tmp_path: Path, gpu: int, between: int) -> None:
    whole = jpeg(48, 64)
    samples = []
    for kind in zoo():
        samples.append({"__key__": kind.name, "jpg": kind.data})
        samples += [{"__key__": f"{kind.name}-whole{n}", "jpg": whole} for n in range(between)]
    # One good sample at least must be there to replace others.
    samples.append({"__key__": "last", "jpg": whole})
    shard = write_shard(tmp_path / "zoo.tar", samples)
    keys = [str(sample["__key__"]) for sample in samples]
    with process() as other:
        on_error = BadImages(replace=True, max_share=1)
        run = other.submit(deliver, [shard], BATCH, keys, device_id=gpu, on_error=on_error).result()
    assert run.error is None
    assert len(run.rows) == run.length
    assert sum(run.rows) == len(samples)
    delivered = {key for key, _ in run.images}
    assert {key for key in keys if "-whole" in key or key == "last"} <= delivered
    assert delivered | set(run.bad) == set(keys)
