"""The notebook of the documentation runs, with the recorded outputs.

``python -m tests.integration.test_notebook`` records its present outputs.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def executed() -> Any:
    """Run the notebook in a kernel of its own; outputs are kept as text alone.

    The first compilation of kernels prints to stderr, which isn't part of the notebook.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
    with tempfile.TemporaryDirectory() as folder:
        # The kernel finds the sources under test, and leaves nothing in the home directory.
        env = dict(os.environ, PYTHONPATH=str(NOTEBOOK.parents[1] / "src"), IPYTHONDIR=folder)
        client.execute(cwd=folder, env=env)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            if "data" in output:
                output["data"] = {"text/plain": output["data"]["text/plain"]}
    return notebook


def cell_outputs(notebook: Any) -> list[str]:
    """Return the output and the value of each code cell."""
    return [
        "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


# The kernel's client leaves sockets to be collected, which aren't the package's.
@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_notebook_outputs_are_reproduced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    import nbformat

    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    kept = cell_outputs(nbformat.read(NOTEBOOK, as_version=4))
    assert cell_outputs(executed()) == kept
    assert all(kept[1:])  # every cell but the first shows something


if __name__ == "__main__":
    import nbformat

    nbformat.write(executed(), NOTEBOOK)
