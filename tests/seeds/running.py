"""Runs the code blocks of a page in its order, with other imports, in what the page leaves open."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Names = dict[str, Any]


class Page:
    """The blocks of a file, numbered from 1, which share their names.

    Attributes:
        imports: what becomes of the modules that are imported, by name.
        before: sets names that the page leaves open, by the number of the block that needs them first.
        names: what the blocks left.
    """

    def __init__(self, file: str, imports: Mapping[str, str], before: Mapping[int, Callable[[Names], None]]) -> None:
        self.blocks = BLOCK.findall((Path(__file__).parent / file).read_text())
        self.imports, self.before = imports, before
        self.names: Names = {"__name__": Path(file).stem}
        self._ended: dict[int, Exception | None] = {}

    def code(self, number: int) -> str:
        """A block, of which import lines alone are changed."""
        code = self.blocks[number - 1]
        for module, other in self.imports.items():
            code = re.sub(rf"^( *from ){re.escape(module)} import", rf"\1{other} import", code, flags=re.MULTILINE)
        return code

    def run(self, number: int) -> Names:
        """The names after a block, where those before it have run, each once. Raises what that block raised."""
        for each in range(1, number + 1):
            if each not in self._ended:
                self._ended[each] = self._run(each)
        if error := self._ended[number]:
            raise error
        return self.names

    def _run(self, number: int) -> Exception | None:
        if number in self.before:
            self.before[number](self.names)
        try:
            exec(compile(self.code(number), f"block {number}", "exec", dont_inherit=True), self.names)
        except Exception as error:  # noqa: BLE001 - of any kind: the test of that block raises it
            return error
        return None
