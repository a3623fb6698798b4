"""Replay single cases of the fuzz: `python -m benchmarks.fuzz NUMBER ...`."""

import sys

import rich

from benchmarks.fuzz.runner import replay

if __name__ == "__main__":
    for number in sys.argv[1:]:
        case = replay(int(number))
        rich.print({"case": case.number, "function": case.function, "setting": case.setting})
        rich.print([f"{f.category}: {f.what}" for f in case.findings] or "nothing found")
