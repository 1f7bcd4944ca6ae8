"""Draws the mermaid diagrams of the pages, light and dark, into diagrams/, so that the site shows them without a
server and without scripts from elsewhere. It needs chromium and npm, which gets mermaid.
"""

import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from browser import Browser
from hooks import DIAGRAM, ROOT, SITE, diagram_name

MERMAID = "mermaid@12.3.0"


def main():
    sources = {diagram_name(source): source
               for page in [ROOT / "README.md", *ROOT.glob("doc/**/*.md")] for source in DIAGRAM.findall(page.read_text())}
    directory = SITE / "diagrams"
    directory.mkdir(exist_ok=True)
    for old in directory.glob("*.svg"):
        if old.stem.split("-")[0] not in sources:
            old.unlink()
    missing = [name for name in sources if not (directory / f"{name}-dark.svg").exists()]
    if not missing:
        print("all diagrams are drawn")
        return
    with tempfile.TemporaryDirectory() as work, Browser() as browser:
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=work, check=True)
        with tarfile.open(next(Path(work).glob("*.tgz"))) as package:
            script = package.extractfile("package/dist/mermaid.min.js").read().decode()
        page = Path(work) / "page.html"
        page.write_text("<!doctype html><meta charset=utf-8><body></body>")
        browser.go(page.as_uri())
        browser.run(script + "; 0")
        for name in missing:
            for mode, theme in (("light", "default"), ("dark", "dark")):
                settings = {"startOnLoad": False, "theme": theme, "htmlLabels": False,
                            "flowchart": {"htmlLabels": False}, "fontFamily": "sans-serif"}
                browser.run(f"mermaid.initialize({json.dumps(settings)})")
                svg = browser.run(f"mermaid.render('d', {json.dumps(sources[name])}).then(r => r.svg)")
                width, height = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', svg).groups()
                # An image has a size of its own.
                svg = svg.replace('width="100%"', f'width="{float(width):.0f}" height="{float(height):.0f}"', 1)
                (directory / f"{name}-{mode}.svg").write_text(svg + "\n")
                print(f"diagrams/{name}-{mode}.svg, {len(svg):,} bytes")


if __name__ == "__main__":
    main()
