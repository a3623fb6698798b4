"""Headless Chromium, for tests of pages."""

import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)


def console_of(address, profile, milliseconds=3000, size="1100,1500"):
    """What a page and its frames write to the console, and its final HTML.

    Only this machine can be reached, by number: names of others are not found.
    """
    browser = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", f"--user-data-dir={profile}",
         "--enable-logging=stderr", "--v=0",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
         f"--virtual-time-budget={milliseconds}", f"--window-size={size}", "--dump-dom", address],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    lines = [line for line in browser.stderr.splitlines() if "CONSOLE" in line]
    return lines, browser.stdout
