"""Screenshot for the README: `python bench/screenshot.py`. The page with a novel, questions, and their passages.

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

from unlimiformer.cli.demo import NOVEL, QUESTIONS
from unlimiformer.hub import get_text

PICTURE = Path(__file__).parent.parent / "docs" / "page.png"


def main() -> None:
    """Start a server with the default model and take the screenshot."""
    with tempfile.TemporaryDirectory() as folder:
        novel = shutil.copy(get_text(NOVEL), Path(folder) / f"{NOVEL.split('/')[-1]}.txt")
        command = [sys.executable, "-m", "unlimiformer", "serve", "--folder", f"{folder}/library", "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            addresses = (re.search(r"http://\S+:\d+", line) for line in server.stderr)
            take_screenshot(next(address[0] for address in addresses if address), novel)
        finally:
            server.kill()


def take_screenshot(url: str, document: Path) -> None:
    """Upload a document, ask the questions of the demo, click on the last answer, and save the picture."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for option in ("--headless=new", "--no-sandbox", "--window-size=1400,820", "--hide-scrollbars"):
        options.add_argument(option)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    def select(selector: str) -> webdriver.remote.webelement.WebElement:
        return browser.find_element("css selector", selector)

    browser.get(url)
    select("#file").send_keys(str(document))
    while not select("#send").is_enabled():
        time.sleep(0.5)
    for question in QUESTIONS:
        select("#question").clear()
        select("#question").send_keys(question)
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
