"""What is printed of names that others chose: a terminal obeys nothing of it, and no line looks like another one."""

from __future__ import annotations

import io
import json
import logging
import tarfile
from pathlib import Path

import pytest
from command_line import run
from making import jpeg

from gpuloader.base.text import as_message, format_bytes, printable
from gpuloader.errors import BadImageError, ConfigError, ShardNotFoundError, TarError

HOSTILE = "\x1b]0;title\x07\x1b[31m\r\n\x7f\x9b1m\u202e\u2066\u2028\u2029[bold red]"
ESCAPED = r"\x1b]0;title\x07\x1b[31m\r\n\x7f\x9b1m\u202e\u2066\u2028\u2029[bold red]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain/key-1.jpg", "plain/key-1.jpg"),
        ("日本 кот é [red]", "日本 кот é [red]"),
        (HOSTILE, ESCAPED),
        ("\udcff\ud800", r"\udcff\ud800"),  # bytes that are no UTF-8, as Python reads names of files
        (r"\x1b", r"\x1b"),
    ],
)
def test_what_a_terminal_would_obey_has_the_escapes_of_repr(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(expected) == expected
    assert printable(text).replace("\\", "") == repr(text)[1:-1].replace("\\", "")


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ConfigError(f"tar={HOSTILE}: allowed is"), [f"tar={ESCAPED}: allowed is"]),
        (ConfigError("first", HOSTILE), ["first", ESCAPED]),  # each argument is a line
        (ShardNotFoundError(HOSTILE), [ESCAPED]),
        (TarError(HOSTILE, 7, "cut"), [f"{ESCAPED}: cut at byte 7"]),
        (
            BadImageError(HOSTILE, HOSTILE, 512, HOSTILE),
            [f"bad image: {ESCAPED}", f"  shard  {ESCAPED}", f"  key    {ESCAPED}"],
        ),
    ],
)
def test_an_errors_text_can_be_printed(error: Exception, lines: list[str]) -> None:
    assert str(error).split("\n")[: len(lines)] == lines
    assert all(line.isprintable() for line in str(error).split("\n"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", "b"], "a\nb"),
        (["x" * 1001 + " y"], "x" * 649 + " ... (1001 characters) ... " + "x" * 324 + " y"),
        ([str(i) for i in range(40)], "\n".join(str(i) for i in range(40))),
        ([*map(str, range(41))], "\n".join([*map(str, range(30)), "... (41 lines) ...", *map(str, range(32, 41))])),
        (["x" * 900 + "\n"] * 3, "\n".join(["x" * 900 + r"\n"] * 3)),
    ],
)
def test_what_is_short_enough_stays(lines: list[str], expected: str) -> None:
    assert as_message(lines) == expected


@pytest.mark.parametrize("count", [1, 2, 5, 29, 100_000])
@pytest.mark.parametrize("line", ["x", "x " * 3000, "x" * 10_000, "\x1b" * 10_000, "x y\n" * 3000])
def test_a_message_is_short_and_keeps_its_beginning_and_end(line: str, count: int) -> None:
    text = as_message([f"begin {line}", *[line] * (count - 1), "and what to do"])
    assert len(text) <= 4000
    assert text.startswith("begin ")
    assert text.endswith("and what to do")
    assert all(part.isprintable() for part in text.split("\n"))


def test_log_lines_can_be_printed(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("gpuloader").warning("%s: %d members, the first being %r", Path(HOSTILE), 3, "\x1b")
    assert caplog.messages == [rf"{ESCAPED}: 3 members, the first being '\x1b'"]


# --- commands

NAMES = ("a\x1b[31m\x9b", "b\u202e[red]", "c\r\nerror: all is well", "d\udcff")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one shard, with hostile names of everything: folder, shard, keys, extensions, members, classes."""
    folder = tmp_path_factory.mktemp("hostile") / f"f{HOSTILE}"
    folder.mkdir()
    with tarfile.open(folder / "s\x1b[2J\n.tar", "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for number, name in enumerate(NAMES):
            image = b"\xff\xd8 no image" if number == 0 else jpeg(40, 40, seed=number)
            members = {"jpg": image, "cls": b"%d" % number, "x\x1b[1m\x07\n\u202e": b"x"}
            for extension, data in members.items():
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        tar.addfile(tarfile.TarInfo("stray\x1b[31m\n.txt"))
    (folder / "classes.json").write_text(json.dumps([f"{number}{HOSTILE}" for number in range(4)]))
    return folder


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("info",), 0, [ESCAPED, r"x\x1b[1m\x07\n\u202e 4"]),
        (("index",), 0, [rf"{ESCAPED}/s\x1b[2J\n.tar: 4 samples", r"left out: 'stray\x1b[31m\n.txt'"]),
        (
            ("check", "--cpu"),
            3,
            [r"bad: 'a\x1b[31m\x9b'", rf"{ESCAPED}/s\x1b[2J\n.tar: left out: 'stray\x1b[31m\n.txt'"],
        ),
        (("show", "--cpu", "--id", "0", "--versions", "1", "-o", "grid.png"), 0, [r"bad image: a\x1b[31m\x9b in"]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
@pytest.mark.slow(kept=1)
def test_commands_print_nothing_that_a_terminal_obeys(
    hostile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    says: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *options = arguments
    result = run(command, hostile, *options)
    assert result.returncode == status, result.stderr
    assert [line for line in result.stdout.split("\n") if not line.isprintable()] == []
    assert all(text in result.stdout for text in says)
    as_json = run(command, hostile, *options, "--json")
    assert as_json.returncode == status
    assert all(line.isprintable() for line in as_json.stdout.split("\n"))
    assert r"\x1b[31m" in repr(json.loads(as_json.stdout))  # JSON's escapes, so its readers have the names as they are


def test_an_error_of_a_command_is_one_line(hostile: Path) -> None:
    for arguments in (("index", hostile / "none\x1b.tar"), ("info", hostile, "--preset", f"{HOSTILE}.yaml")):
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.endswith("\n")
        assert result.stderr.removesuffix("\n").isprintable()
        assert ESCAPED in result.stderr


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (66_900, "66.9 kB"), (46_059_520, "46.1 MB"), (2e12, "2 TB")]
)
def test_bytes_are_said_in_three_digits(count: float, said: str) -> None:
    assert format_bytes(count) == said
