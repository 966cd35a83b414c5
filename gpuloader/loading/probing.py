"""Finds out how this machine's GPU decodes, at the first loader, and keeps the result for these versions."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import replace

import platformdirs
import torch

from gpuloader.helpers.atomic_files import atomic_file
from gpuloader.helpers.versions import decoder_versions
from gpuloader.loading.options import Decoder
from gpuloader.pipelines.probe import TRIALS, Found, probe

_log = logging.getLogger("gpuloader")


def resolve_decoder(decoder: Decoder, device_id: int | None, seekable: bool = False) -> Decoder:
    """Fills in a decoder's settings that are None, on a GPU as `find_decoding` found them.

    Args:
        decoder: the settings as given.
        device_id: a GPU; None for the CPU.
        seekable: whether the images are cut to their regions before they are decoded, so that all of them is needed.

    Raises:
        DeviceError: the GPU cannot decode.
    """
    if seekable and decoder.region is None:
        decoder = replace(decoder, region=False)
    if device_id is None or None not in (decoder.region, decoder.hw_load):
        return decoder
    found = find_decoding(device_id)
    hw_load = found.hw_load if decoder.hw_load is None else decoder.hw_load
    return replace(decoder, hw_load=hw_load, region=found.region(hw_load) if decoder.region is None else decoder.region)


def find_decoding(device_id: int) -> Found:
    """Returns what was found for this kind of GPU and these versions of the decoders; tries now if nothing is kept yet.

    Raises:
        DeviceError: the GPU cannot decode.
    """
    key = {"GPU": torch.cuda.get_device_name(device_id), **decoder_versions()}
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    file = platformdirs.user_cache_path("gpuloader") / f"decoding-{digest}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):  # there is no such file, or it is damaged
        kept = json.loads(file.read_text())
        problems = tuple(str(kept["problems"][number]) for number in range(len(TRIALS)))
        if kept["key"] == key:
            return Found(problems)
    _log.warning("trying once how %s decodes JPEGs, for a few seconds; the result is kept in %s", key["GPU"], file)
    found = probe(device_id)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as kept_file:
            kept_file.write(json.dumps({"key": key, "problems": found.problems}, indent=1).encode())
    except OSError as error:
        _log.warning("%s cannot be written (%s): each loader tries again how the GPU decodes", file, error.strerror)
    return found
