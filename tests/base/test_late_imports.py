import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloader.base.late_imports import import_late


def test_an_interrupt_waits_for_the_end_of_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhole = True\n"
    (tmp_path / "interrupted_late.py").write_text(work)
    monkeypatch.syspath_prepend(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        import_late("interrupted_late")
    assert sys.modules.pop("interrupted_late").whole
    assert signal.getsignal(signal.SIGINT) is handler


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    places = ["torch.nn.functional", "nvidia.dali.ops"]

    def find_spec(self, name, path=None, target=None):
        if name in self.places:
            self.places.remove(name)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
import gpuloader
try:
    gpuloader.GPULoader
    print("not interrupted")
except KeyboardInterrupt:
    gpuloader.GPULoader

import nvidia.dali.ops, torch
print(Interrupt.places, torch.nn.Linear(1, 1).bias.shape, callable(nvidia.dali.ops.Cat))
"""


@pytest.mark.slow(kept=0)
def test_torch_and_dali_are_of_use_after_an_interrupt_while_they_were_imported() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True, check=True)
    assert result.stdout == "[] torch.Size([1]) True\n"
