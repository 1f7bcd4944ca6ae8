"""Builds the site, opens each page in chromium, from its file, and looks for dead links and failed loads. A search
must find "fencing". With --shots DIRECTORY it also takes pictures, 1280 and 390 pixels wide, light and dark.

It uses the mkdocs of the environment that README.md sets up. Links to other sites are not followed, those to files of
the repository must have a file.
"""

import argparse
import base64
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from browser import Browser
from hooks import REPOSITORY, ROOT, SITE

PUBLIC = SITE / "public"
MKDOCS = SITE / ".venv" / "bin" / "mkdocs"

PAGE = """({
  links: [...document.querySelectorAll('a[href]')].map(a => a.href),
  ids: [...document.querySelectorAll('[id],a[name]')].map(e => e.id || e.name),
  images: [...document.images].filter(i => i.complete && !i.naturalWidth && i.offsetParent).map(i => i.src),
  loads: performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith('file:')),
  wide: document.documentElement.scrollWidth - innerWidth,
})"""


def failures(events):
    """What the events of a page say went wrong."""
    for event in events:
        params = event.get("params", {})
        if event.get("method") == "Network.loadingFailed" and not params.get("canceled"):
            yield f"a file failed to load: {params['errorText']}"
        if event.get("method") == "Runtime.exceptionThrown":
            yield f"a script failed: {params['exceptionDetails']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shots", type=Path, help="directory for pictures")
    options = parser.parse_args()
    # Not --quiet, with which --strict fails for nothing.
    build = subprocess.run([MKDOCS, "build", "--strict", "--config-file", SITE / "mkdocs.yml"], text=True,
                           capture_output=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    if build.returncode:
        raise SystemExit(build.stdout + build.stderr)

    pages, troubles = {}, []
    with Browser() as browser:
        resize(browser, 390)
        for file in sorted(PUBLIC.rglob("*.html")):
            if file.name == "404.html":
                continue  # for servers
            troubles += [f"{file}: {failure}" for failure in failures(browser.go(file.as_uri()))]
            page = pages[file] = browser.run(PAGE)
            troubles += [f"{file}: no image {image}" for image in page["images"]]
            troubles += [f"{file}: loads {name}" for name in page["loads"]]
            if page["wide"] > 0:
                troubles.append(f"{file}: {page['wide']} pixels wider than a phone")
        links = 0
        for file, page in pages.items():
            for link in page["links"]:
                links += 1
                if (trouble := dead(link, pages)) is not None:
                    troubles.append(f"{file}: {link}: {trouble}")
        for mode, scheme in (("light", "default"), ("dark", "slate")):
            if (shown := first_visit(browser, mode)) != scheme:
                troubles.append(f"a browser that prefers {mode} shows the scheme {shown}")
        found = search(browser, "fencing")
        if options.shots:
            shots(browser, options.shots)
    for trouble in dict.fromkeys(troubles):
        print(trouble)
    print(f"{len(pages)} pages, {links} links. A search for fencing finds {len(found)} pages, the first: {found[0]}")
    print(f"{len(pages)} passed, {len(troubles)} failed")
    return bool(troubles)


def dead(link, pages):
    """Why a link is dead, or None."""
    url = urlsplit(link)
    if url.scheme == "file":
        file, anchor = Path(unquote(url.path)), unquote(url.fragment)
        if file not in pages:
            return None if file.is_file() else "no such file"
        if anchor and anchor not in pages[file]["ids"]:
            return "no such heading"
    for kind in ("blob", "tree"):
        prefix = f"{REPOSITORY}/{kind}/main/"
        if link.startswith(prefix) and not (ROOT / unquote(urlsplit(link[len(prefix):]).path)).exists():
            return "no such file in the repository"
    return None


def search(browser, words):
    """Types the words into the search of the first page, and returns the titles that it finds."""
    resize(browser, 1280)
    browser.go((PUBLIC / "index.html").as_uri())
    browser.run("document.querySelector('.md-search__input').focus()")
    for key in words:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
    browser.wait("document.querySelectorAll('.md-search-result__item a').length")
    found = browser.run("[...document.querySelectorAll('.md-search-result__item h1')].map(h => h.innerText)")
    first = browser.run("document.querySelector('.md-search-result__item a').href")
    browser.go(first)
    if not browser.run(f"document.querySelector('article').innerText.toLowerCase().includes({words!r})"):
        raise SystemExit(f"{first}, the first that the search found, has no {words}")
    return found


def first_visit(browser, mode):
    """Opens the first page in a browser that prefers the mode, and returns the scheme of the page."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
    browser.go((PUBLIC / "index.html").as_uri())
    browser.run("localStorage.clear()")  # which remembers a choice
    browser.go((PUBLIC / "index.html").as_uri())
    return browser.run("document.body.dataset.mdColorScheme")


def resize(browser, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)


def shots(browser, directory):
    directory.mkdir(parents=True, exist_ok=True)
    for mode in ("light", "dark"):
        first_visit(browser, mode)
        for width in (1280, 390):
            resize(browser, width)
            for name in ("index", "operator", "readme", "doc/guarantees", "doc/performance", "doc/cli", "doc/lock"):
                browser.go((PUBLIC / f"{name}.html").as_uri())
                picture = browser.call("Page.captureScreenshot")["data"]
                file = directory / f"{name.replace('/', '-')}-{width}-{mode}.png"
                file.write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    sys.exit(main())
