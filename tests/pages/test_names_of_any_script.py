"""Names that fonts of the machine may lack: charts hold them as text, for the reader's fonts."""

import numpy as np
import pandas as pd

from commands import kermix


def test_a_report_of_a_table_holds_names_of_any_script_as_text(tmp_path, recwarn):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"価格": rng.normal(size=80), "🍎": rng.choice(["赤", "緑"], 80)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    kermix("fit", tmp_path / "rows.csv", "--model", "table", "--quick", "--steps", 2,
           "--device", "cpu", "--out", tmp_path / "run")  # fmt: skip
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(name in page for name in ("価格", "🍎", ">赤</text>", ">緑</text>"))
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
