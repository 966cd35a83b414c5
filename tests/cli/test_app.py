"""The command line, run as a user runs it."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from inspect import getdoc
from pathlib import Path

import pytest
from command_line import run
from full import FULL
from making import jpeg, unpack, write_samples, write_shard, write_tree
from serving import Server
from warm import CLI, warm

from gpuloader import GPULoader
from gpuloader.cli.app import COMMANDS
from gpuloader.errors import ConfigError
from gpuloader.pack import pack
from gpuloader.recipe import load_preset, preset_names
from gpuloader.tools.bench import bench
from gpuloader.tools.check import check_shards
from gpuloader.tools.info import describe_shards
from gpuloader.tools.show import Gallery
from gpuloader.tools.verify import verify


def test_index_makes_the_indexes_and_says_what_is_in_the_shards(tmp_path: Path) -> None:
    write_samples(tmp_path, 10, shards=2)
    samples = [{"__key__": "a", "jpg": jpeg(40, 40), "cls": b"1"}, {"__key__": "b", "txt": b"no image"}]
    write_shard(tmp_path / "train-0002.tar", samples)
    result = run("index", tmp_path)
    assert result.returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.gpuidx")) == [f"train-000{i}.tar.gpuidx" for i in range(3)]
    lines = result.stdout.splitlines()
    assert lines[0] == f"{tmp_path}/train-0000.tar: 5 samples"
    assert lines[3].startswith("  left out: 'b.txt' at byte ")
    assert lines[3].endswith("its key has no image")
    assert lines[-1] == "11 samples in 3 shards"


def test_index_puts_that_of_a_folder_beside_it(tmp_path: Path) -> None:
    folder = unpack(write_samples(tmp_path / "shards", 4, shards=1), tmp_path / "photos")
    (folder / "notes.txt").write_text("no picture")
    result = run("index", folder)
    assert result.stdout.splitlines() == [
        f"{folder}: 4 samples",
        "  left out: './notes.txt': its key has no image",
        "4 samples in 1 shard",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "photos.gpuidx", "shards"]


@pytest.mark.parametrize("kind", ["tars", "tars of a store", "folders"])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "JSON"])
def test_index_names_each_index_that_it_cannot_save_and_exits_with_1(tmp_path: Path, kind: str, as_json: bool) -> None:
    given = write_samples(tmp_path, 6, shards=3)
    if kind == "folders":
        given = [unpack([tar], tmp_path / tar.stem) for tar in given]
    if kind == "tars of a store":  # their indexes are on the store, and are kept in the cache
        run("index", *given)
    with Server(tmp_path) as server:
        shards = [f"{server.url}/{tar.name}" for tar in given] if kind == "tars of a store" else list(map(str, given))
        assert run("index", shards[0]).returncode == 0
        result = warm().run(FULL + CLI, "index", *shards, *(["--json"] if as_json else []))
    assert result.returncode == 1
    error = result.stderr.partition("error: ")[2]
    assert [shard in error for shard in shards] == [False, True, True]
    if as_json:
        assert [each["samples"] for each in json.loads(result.stdout)["shards"]] == [2, 2, 2]
    else:
        assert result.stdout.splitlines()[:3] == [f"{shard}: 2 samples" for shard in shards]


def test_what_opens_a_folder_of_two_splits_refuses_it_but_check_and_index_do_not(tmp_path: Path) -> None:
    train, val = write_samples(tmp_path / "both", 8, shards=2)
    val.rename(tmp_path / "both" / "val-0000.tar")
    both, told = tmp_path / "both", "both has the splits train, val: give .*both/train-"
    for refuse in (
        lambda: GPULoader(both, 2, None),
        lambda: GPULoader([{"tar": both}, {"tar": train}], 2, None),
        lambda: describe_shards(both),
        lambda: bench(both, 2, None),
        lambda: Gallery(both, device_id=None),
        lambda: verify(both, None),
        lambda: pack(both, tmp_path / "packed", workers=1),
    ):
        with pytest.raises(ConfigError, match=told):
            refuse()
    assert not (tmp_path / "packed").exists()
    assert check_shards(both, device_id=None).samples == 8
    assert run("index", both).stdout.endswith("8 samples in 2 shards\n")


def test_presets_lists_them_and_prints_one_that_can_be_read_back(tmp_path: Path) -> None:
    listed = run("presets")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == preset_names()
    mine = tmp_path / "mine.yaml"
    mine.write_text(run("presets", "dino").stdout)
    assert load_preset(mine) == load_preset("dino")


def test_presets_prints_what_python_has_as_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from gpuloader import Compose\n"
        "from gpuloader.transforms import CenterCrop, Normalize, Resize\n"
        "compose = Compose([Resize(40), CenterCrop(32), Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))], layout='nchw')\n"
    )
    printed = run("presets", "mine:compose").stdout
    assert printed.startswith("transforms:\n- Resize: {size: 40}\n- CenterCrop: {size: 32}\n- Normalize:\n")
    Path("mine.yaml").write_text(printed)
    assert run("presets", "mine.yaml").stdout == printed
    assert load_preset("mine.yaml").shapes == [(32, 32)]


def test_a_module_that_cannot_be_imported_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("1 / 0")
    result = run("presets", "mine:recipe")
    assert (result.returncode, result.stderr.count("Traceback")) == (1, 0)
    assert "importing mine fails: ZeroDivisio" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("presets", "nothing:here"), "error: nothing:here: No module named 'nothing'; allowed is MODULE:NAME"),
        (("index", "/no/such.tar"), "error: no such file: /no/such.tar (there is no folder /no either)"),
        (("demo", "-o", "demo.txt"), "error: demo.txt: allowed is a file that ends in .png, .jpg or .jpeg"),
    ],
)
def test_a_users_mistake_is_one_message_and_status_1(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr


def test_what_may_not_be_read_or_written_is_said_before_the_work(tmp_path: Path) -> None:
    write_samples(tmp_path / "shards", 4)
    (tmp_path / "closed").mkdir(mode=0o000)
    (tmp_path / "read-only").mkdir(mode=0o555)
    closed, read_only, shards = tmp_path / "closed", tmp_path / "read-only", tmp_path / "shards"
    for arguments, message in [
        (("index", closed), f"error: {closed} cannot be read (Permission denied): check the path and your permissions"),
        (("check", shards, "--quarantine", read_only / "bad.jsonl"), f"error: {read_only}/bad.jsonl cannot be written"),
        (("check", shards, "--quarantine", shards), f"error: {shards}: this is a folder or a device; name a file\n"),
    ]:
        result = run(*arguments, modes_hold=True)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith(message)


def test_what_the_terminals_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    write_tree(tmp_path, {"kätze/1.jpg": jpeg(40, 50)})
    result = run("info", tmp_path, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr.count("Traceback")) == (0, 0)
    assert re.search(r"^  0 k\\xe4tze +(\\u2588)+ 1$", result.stdout, re.MULTILINE)


def test_the_version() -> None:
    assert run("--version").stdout == f"gpuloader {version('gpuloader')}\n"


@pytest.mark.parametrize("command", [each.__name__ for each in COMMANDS])
@pytest.mark.slow(kept=4)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert f"Example: gpuloader {command}" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_paragraph_of_help_is_one_line_because_typer_keeps_line_ends(command: Callable[..., None]) -> None:
    assert all("\n" not in paragraph for paragraph in str(getdoc(command)).split("\n\n"))


def test_the_shell_completes_the_names_of_presets() -> None:
    asked = {"_GPULOADER_COMPLETE": "complete_bash", "COMP_WORDS": "gpuloader presets imagenet_e", "COMP_CWORD": "2"}
    result = subprocess.run(["gpuloader"], capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert result.stdout.split() == ["imagenet_eval"]
