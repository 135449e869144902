"""Screenshot for the README: `python bench/screenshot.py`. The page with Hamlet, questions and their passages.

Needs chromium and chromedriver; writes docs/page.png.
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

from unlimiformer.hub import get_text
from unlimiformer.tasks.synthetic import DEMO_FACTS, plant_facts

PICTURE = Path(__file__).parent.parent / "docs" / "page.png"


def main() -> None:
    """Start a server with the default model and take the screenshot."""
    with tempfile.TemporaryDirectory() as folder:
        play = Path(folder) / "Hamlet.txt"
        play.write_text(plant_facts(get_text("shakespeare/hamlet").read_text(), DEMO_FACTS))
        command = [sys.executable, "-m", "unlimiformer", "serve", "--folder", f"{folder}/library", "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            addresses = (re.search(r"http://\S+:\d+", line) for line in server.stderr)
            take_screenshot(next(address[0] for address in addresses if address), play)
        finally:
            server.kill()


def take_screenshot(url: str, play: Path) -> None:
    """Upload the play, ask about every planted fact, click on the last answer, and save the picture."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for option in ("--headless=new", "--no-sandbox", "--window-size=1400,820", "--hide-scrollbars"):
        options.add_argument(option)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    def select(selector: str) -> webdriver.remote.webelement.WebElement:
        return browser.find_element("css selector", selector)

    browser.get(url)
    select("#file").send_keys(str(play))
    while not select("#send").is_enabled():
        time.sleep(0.5)
    select("#compare").click()
    for fact in reversed(DEMO_FACTS):
        select("#question").clear()
        select("#question").send_keys(fact.question)
        select("#send").click()
        time.sleep(1)
        while not select("#send").is_enabled():
            time.sleep(0.2)
    ActionChains(browser).click(select(".answer .word")).perform()
    time.sleep(0.5)
    browser.save_screenshot(str(PICTURE))
    browser.quit()


if __name__ == "__main__":
    main()
