"""What mkdocs adds to the pages in docs/: the reference, written from the code, and checks of what was built."""

from __future__ import annotations

import inspect
import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from griffe import Class, Extension, Function, Object, Parameter, ParameterKind, Parameters
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import gpuloader
from gpuloader import collators, errors, transforms
from gpuloader.cli.app import app
from gpuloader.recipe import preset_names, preset_text

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = ["CHANGELOG.md", "scripts/bench/README.md", "scripts/train_imagenet.py", "scripts/examples/*.py"]
"""Files outside of docs/ that pages or the navigation link to."""
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LOADS = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]*|url\(["']?https?:"""
)
TEXT_OF_TABLE = re.compile(r"<p>(?:(?:(?!</p>).)*?\n)??(\|[^\n]*)", re.DOTALL)
"""The first line in a paragraph that begins as the rows of tables do: Markdown took it for text."""
ALONE = "\n    options: {members: false}"
"""For mkdocstrings: a class without its methods, which are internal."""
_INHERITED = dict.fromkeys(("GPULoader", "MixedLoader"), "\n    options: {inherited_members: true}")
log = logging.getLogger("mkdocs.hooks.site_pages")  # `--strict` counts its warnings


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference, those of the notebooks, and files that are not in docs/."""
    for name, content in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for path in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content="\n\n".join(notebook(path))))
    for path in (path for pattern in ELSEWHERE for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Corrects links: on the site scripts/ is beside the pages, and notebooks are pages."""
    return markdown.replace("](../scripts/", "](scripts/").replace(".ipynb)", ".md)")


def on_post_build(config: MkDocsConfig) -> None:
    """Puts the pages' Markdown beside them, for agents; warns of broken tables, and of what comes from elsewhere."""
    site, docs = Path(config.site_dir), Path(config.docs_dir)
    for path in docs.rglob("*.md"):
        shutil.copy(path, site / path.relative_to(docs))
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for found in LOADS.findall(path.read_text()):
            log.warning("%s loads from elsewhere: %s", path.relative_to(site), found)
    for path in site.rglob("*.html"):
        for row in TEXT_OF_TABLE.findall(path.read_text()):
            log.warning("%s has a table's row as text (an empty line above it?): %s", path.relative_to(site), row)


def reference() -> dict[str, str]:
    """The pages of the reference, by name."""
    others = (name for name in gpuloader.__all__ if name not in (*errors.__all__, "__version__"))
    loading = list(dict.fromkeys(["GPULoader", "Compose", "MixedLoader", *others]))
    return {
        "index": "\n".join(overview(loading)),
        "loading": documented("Loading", gpuloader, loading) + f"\n\n::: gpuloader.recipe.Recipe{ALONE}",
        "transforms": documented("Transforms", transforms, options=ALONE),
        "collators": documented("Collators", collators),
        "lightning": LIGHTNING,
        "errors": documented("Errors", errors),
        "presets": "\n\n".join(["# Presets", *map(preset, preset_names())]),
        "commands": "\n\n".join(["# Commands", *map(command, typer.main.get_command(app).commands.values())]),  # type: ignore[attr-defined]
    }


def notebook(path: Path) -> Iterator[str]:
    """The Markdown of a notebook with its outputs."""
    first, *cells = json.loads(path.read_text())["cells"]
    yield "".join(first["source"])
    yield f'<a href="{path.name}" download>Download this notebook</a>'
    for cell in cells:
        source = "".join(cell["source"])
        yield f"```python\n{source}\n```" if cell["cell_type"] == "code" else source
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text")})
            [(kind, lines)] = data.items()
            text = "".join(lines).rstrip()
            picture = f'<img style="max-width: 100%" alt="" src="data:{kind};base64,{text}">'
            yield {"text/html": text, "image/jpeg": picture}.get(kind, f"```text\n{text}\n```")


LIGHTNING = """# Lightning and Hugging Face

`gpuloader.trainers.lightning` is for the package `lightning`, `gpuloader.trainers.pytorch_lightning` for
`pytorch_lightning`; both have these two, with the arguments of the classes below. [How to use them](../lightning.md).

- `GPULoaderDataModule` is a `LightningDataModule` and a
  [`TrainerLoaders`][gpuloader.trainers.datamodule.TrainerLoaders].
- `GPULoaderWaitMonitor` is a `Callback`, and a [`WaitLogging`][gpuloader.trainers.wait_callback.WaitLogging].

::: gpuloader.trainers.datamodule.TrainerLoaders

::: gpuloader.trainers.wait_callback.WaitLogging

::: gpuloader.trainers.transformers.GPULoaderTrainer
"""


def overview(loading: Sequence[str]) -> Iterator[str]:
    """Every public name with the first sentence of its docstring."""
    yield "# Reference\n\nEvery public name. [Presets](presets.md) and [commands](commands.md) have their own pages.\n"
    for title, where, names in (
        ("Loading", gpuloader, loading),
        ("Transforms", transforms, transforms.__all__),
        ("Collators", collators, collators.__all__),
        ("Errors", errors, errors.__all__),
    ):
        yield f"## {title}\n\n| `{where.__name__}` | |\n|---|---|"
        for name in names:
            yield f"| [`{name}`][{where.__name__}.{name}] | {first_sentence(getattr(where, name))} |"
        yield ""


def first_sentence(thing: object) -> str:
    """The first sentence of its docstring, on one line; empty for a value or an alias."""
    if not callable(thing) or not hasattr(thing, "__name__"):
        return ""
    return re.split(r"(?<=\.)\s|\n\n", thing.__doc__ or "", maxsplit=1)[0].replace("\n", " ").replace("|", "\\|")


def documented(title: str, where: ModuleType, names: Sequence[str] = (), options: str = "") -> str:
    """A page with a module's docstring and its names."""
    intro = "" if names else f"\n\n{where.__doc__}"
    each = (f"::: {where.__name__}.{name}{_INHERITED.get(name, options)}" for name in names or where.__all__)
    return "\n\n".join([f"# {title}{intro}", *each])


def preset(name: str) -> str:
    """A section with the comment at the head of the file, and the recipe."""
    lines = preset_text(name).splitlines()
    said = "\n".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    recipe = "\n".join(line for line in lines if not line.startswith("#"))
    return f"## {name}\n\n{said}\n\n```yaml\n{recipe}\n```"


def command(one: Any) -> str:  # noqa: ANN401
    """A section with the text of `--help`."""
    said, *examples = re.split(r"^Example: ", one.help, flags=re.MULTILINE)
    shown = "".join(f"\n    {example.strip()}" for example in examples)
    rows = [f"| `{', '.join(names(option))}` | {option.help} | {default(option)} |" for option in one.params]
    table = "\n".join(["| argument | | default |", "|---|---|---|", *rows])
    return f"## {one.name}\n\n{said.strip()}\n{shown}\n\n{table}"


def names(option: Any) -> list[str]:  # noqa: ANN401
    """The names of an argument, such as `--shuffle` and `--no-shuffle`."""
    return [*option.opts, *option.secondary_opts]


def default(option: Any) -> str:  # noqa: ANN401
    """The value of an argument that is not given."""
    return "required" if option.required else "" if option.default in (None, False, ()) else f"`{option.default}`"


class Docstrings(Extension):
    """Tells mkdocstrings what it does not find in the code: the sections `Example:`, and what makes a transform."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")

    def on_class_members(self, *, cls: Class, **_: Any) -> None:  # noqa: ANN401
        if any(str(decorator.value) in ("argument", "part") for decorator in cls.decorators):
            made = inspect.signature(getattr(import_module(cls.module.canonical_path), cls.name))
            names = [Parameter("self", kind=ParameterKind.positional_or_keyword)]
            for each in made.parameters.values():
                default = None if each.default is each.empty else repr(each.default)
                names.append(Parameter(each.name, kind=ParameterKind.positional_or_keyword, default=default))
            cls.set_member("__init__", Function("__init__", parameters=Parameters(*names)))
