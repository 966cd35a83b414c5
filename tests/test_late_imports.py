import gc
import sys
from pathlib import Path

import pytest

from gpuloader.late_imports import import_late


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("body", ["paused = not gc.isenabled()", "raise ImportError('broken')"])
def test_the_collector_is_paused_and_then_as_it_was(
    body: str, collecting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text(f"import gc\n{body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    (gc.enable if collecting else gc.disable)()
    try:
        if "raise" in body:
            with pytest.raises(ImportError, match="broken"):
                import_late("imported_late")
        else:
            assert import_late("imported_late").paused
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
