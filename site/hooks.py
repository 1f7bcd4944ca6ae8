"""Makes the pages of the site from the Markdown files of the repository, as they are.

Each file keeps its path, so links between pages need no change. A link to any other file leads to the repository.
"""

import hashlib
import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
REPOSITORY = "https://github.com/redlatch/redlatch"

log = logging.getLogger("mkdocs.hooks.redlatch")

# A block of code, or code in a line, or the target of a link. Only the last has a group.
LINK = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
# A block of code, or the indentation of a line in a list. GitHub nests at two columns, Python-Markdown at four.
INDENT = re.compile(r"^```.*?^```$|^ {2,}(?=\S)", re.MULTILINE | re.DOTALL)

# An item of a list after a second paragraph of the item before it: Python-Markdown needs an empty line between them.
GLUED = re.compile(r"\n\n {2,}(?![-*`] )\w[^\n]*(?:\n +[^\n]*)*\n((?:[-*]|\d+\.) [^\n]*)")


def pages_in(nav):
    """The pages that the navigation names."""
    for item in nav:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            yield from pages_in(target)
        else:
            yield target


def diagram_name(source):
    """The name of the drawing of a diagram: it changes with the diagram."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def on_files(files, config):
    wanted = {page for page in pages_in(config.nav) if not files.get_file_from_path(page)}
    wanted |= {str(path.relative_to(ROOT)) for path in ROOT.glob("doc/**/*") if path.suffix in (".md", ".svg")}
    wanted |= {str(path.relative_to(ROOT)) for path in SITE.glob("diagrams/*.svg")}
    for path in sorted(wanted):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    if (page := files.get_file_from_path("README.md")) is not None:
        page.dest_uri = "readme.html"  # index.html is the page of the site itself
    return files


def on_page_markdown(markdown, page, config, files):
    source = page.file.src_uri
    for found in GLUED.finditer(re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)):
        log.warning("%s: put an empty line before %r", source, found.group(1))
    own = files.get_file_from_path(source).generated_by is None
    directory = "site/pages" if own else posixpath.dirname(source)

    def link(found):
        target = found.group(1)
        if target is None or "://" in target or target.startswith(("#", "mailto:")):
            return found.group()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(directory, path))
        if path.startswith("site/pages/"):
            path = path.removeprefix("site/pages/")
        anchor = f"#{anchor}" if anchor else ""
        if files.get_file_from_path(path):
            return f"]({posixpath.relpath(path, posixpath.dirname(source) or '.')}{anchor})"
        if not (ROOT / path).exists():
            log.warning("%s: link to %r, which does not exist", source, target)
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{path}{anchor})"

    def diagram(found):
        name = diagram_name(found.group(1))
        at = posixpath.relpath("site/diagrams", posixpath.dirname(source) or ".")
        if not files.get_file_from_path(f"site/diagrams/{name}-light.svg"):
            log.warning("%s: a diagram has changed: run site/draw.py.py", source)
            return found.group()
        return "".join(f"![Diagram]({at}/{name}-{mode}.svg#only-{mode})" for mode in ("light", "dark")) + "\n"

    def indent(found):
        return found.group() if found.group().startswith("`") else found.group() + "  "

    return INDENT.sub(indent, DIAGRAM.sub(diagram, LINK.sub(link, markdown)))
