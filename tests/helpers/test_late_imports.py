import gc
import signal
import sys
from pathlib import Path

import pytest

from gpuloader.helpers.late_imports import import_late


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


def test_an_interrupt_waits_for_the_end_of_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhole = True\n"
    (tmp_path / "interrupted_late.py").write_text(work)
    monkeypatch.syspath_prepend(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        import_late("interrupted_late")
    assert sys.modules.pop("interrupted_late").whole
    assert signal.getsignal(signal.SIGINT) is handler
