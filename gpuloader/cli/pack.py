"""`gpuloader pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuloader.cli.options import AsJson, part_of
from gpuloader.cli.printing import FOUND_SOMETHING_WRONG, print_json, say
from gpuloader.helpers.text import counted

_STAYS = "jpegtran refused them or warned, something follows their end, or their pixels would change"


def pack(
    source: Annotated[
        str,
        typer.Argument(
            help="Class folders, FILE.csv, FILE.jsonl, tars, a Hugging Face dataset or torchvision:NAME:ROOT. With "
            "boxes or masks: a COCO FILE.json, a Pascal VOC folder or its ImageSets/Main/LIST.txt, ROOT/images beside "
            "ROOT/labels of YOLO or beside ROOT/masks."
        ),
    ],
    destination: Annotated[str, typer.Argument(help="The folder for the shards.")],
    samples_per_shard: Annotated[
        int | None, typer.Option(help="1000 by default, unless --shard-bytes is given.", show_default=False)
    ] = None,
    shard_bytes: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Most bytes of source pictures in a shard, such as 256MiB."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the order and which samples are held out.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Mix the samples, or keep the source's order.")] = True,
    val_share: Annotated[
        float, typer.Option(help="The share of the samples that goes to val-000000.tar and the following.")
    ] = 0.0,
    prefix: Annotated[str, typer.Option(help="What the names of the other shards begin with.")] = "train",
    max_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Downsize pictures whose shorter side is longer than this.")
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Quality of the JPEGs that --max-size makes; 90 by default.", show_default=False)
    ] = None,
    decoded: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="Store pixels as KEY.npy, with the shorter side downsized to this."),
    ] = None,
    seekable: Annotated[
        bool, typer.Option("--seekable", help="Rewrite JPEGs losslessly, so that loaders decode only what they need.")
    ] = False,
    classes: Annotated[Path | None, typer.Option(help="JSON list of names that number the labels.")] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The pictures of a COCO file, if they are not found.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of processes; by default one per core.")] = None,
    part: Annotated[str, typer.Option(metavar="I/N", help="Write the I-th of N parts; I starts at 0.")] = "0/1",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster: auto, local or host:port.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Packs pictures with labels, boxes or masks into WebDataset shards. If it was killed, run it again: it resumes.

    Several sources may go to one folder, each with its own --prefix. If bad pictures were left out, exits with 3.

    Example: gpuloader pack imagenet/train shards/train/ --shard-bytes 256MiB
    """
    from gpuloader.pack import pack as pack_pictures

    result = pack_pictures(
        source,
        destination,
        samples_per_shard=samples_per_shard,
        shard_bytes=shard_bytes,
        seed=seed,
        shuffle=shuffle,
        val_share=val_share,
        prefix=prefix,
        max_size=max_size,
        quality=quality,
        decoded=decoded,
        seekable=seekable,
        classes=classes,
        images=images,
        workers=workers,
        part=part_of(part),
        ray=ray,
        progress=True,
    )
    if as_json:
        print_json(result)
    else:
        for picture in result.left_out:
            say(f"left out: {picture.name!r}: {picture.why}")
        if result.passed_over:
            say(f"skipped, because they belong to no sample: {result.passed_over:,}")
        total = len(result.shards) + len(result.missing)
        shards = f"{len(result.shards):,} of {counted(total, 'shard')}"
        say(f"{counted(result.samples, 'sample')} in {shards}, {result.bytes:,} bytes")
        if result.jpegs and result.seekable is not None:
            others = f"; the others stay as they were: {_STAYS}" if result.seekable < result.jpegs else ""
            say(f"seekable: {result.seekable:,} of {counted(result.jpegs, 'JPEG')}{others}")
        if result.missing:
            say(f"still missing: {', '.join(result.missing[:5])}{' ...' if len(result.missing) > 5 else ''}")
    if result.left_out:
        raise typer.Exit(FOUND_SOMETHING_WRONG)
