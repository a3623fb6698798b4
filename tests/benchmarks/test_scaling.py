"""The benchmark of losses over several processes, and the page it is shown on."""

import json
from pathlib import Path

import pytest
from benchmarks.scaling_page import write_scaling_page

from kermix.errors import RunError

RESULTS = Path(__file__).parents[2] / "results" / "bench"


def test_page_shows_every_measured_step(tmp_path):
    page = write_scaling_page(RESULTS, tmp_path / "scaling.md").read_text()
    record = json.loads(next(RESULTS.glob("scaling-*.json")).read_text())
    for row in record["tables"]["steps"]:
        assert f"| {row['seconds']:.4g} | {row['payload_bytes']} |" in page
    for heading in ("Measured", "a trillion rows"):
        assert heading in page
    (tmp_path / "none").mkdir()
    with pytest.raises(RunError, match="no scaling"):
        write_scaling_page(tmp_path / "none", tmp_path / "page.md")
