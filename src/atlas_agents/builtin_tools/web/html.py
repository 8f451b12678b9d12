"""HTML as Markdown: the main content of a page, without navigation and hidden elements."""

from html_to_markdown import ConversionOptions, convert
from selectolax.lexbor import LexborHTMLParser, LexborNode

from atlas_agents.builtin_tools.web.ssrf import absolute_links
from atlas_agents.core.text import one_line

_INVISIBLE = (
    "script, style, noscript, template, iframe, object, embed, svg, canvas, dialog, video, audio, head, link, meta, "
    "input, select, textarea, button, [hidden], [aria-hidden=true]"
)
_BOILERPLATE = (
    "nav, aside, footer, body > header, [role=navigation], [role=banner], [role=contentinfo], [role=search], "
    "[role=complementary], .navbar, .sidebar, .breadcrumb, .breadcrumbs, .cookie-banner, .headerlink"
)
_MAIN_SELECTORS = (
    "main",
    "[role=main]",
    "article",
    "#content",
    "#main",
    "#mw-content-text",
    ".markdown-body",
    ".post-content",
)
_HIDING_STYLES = ("display:none", "visibility:hidden", "font-size:0", "opacity:0")
_OPTIONS = ConversionOptions(extract_metadata=False, autolinks=False, compact_tables=True, bullets="-")
_MIN_MAIN_TEXT = 200
_MAX_LINKS = 40
_MAX_LABEL = 100


def read_html(html: str, url: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return title, Markdown and links of the main content of a page."""
    page = LexborHTMLParser(html)
    title = _find_title(page)
    base = _find_base(page, url)
    for node in page.css(_INVISIBLE):
        node.decompose()
    for node in page.css("[style]"):
        if _is_hidden(node):
            node.decompose()
    main = _find_main(page)
    if main is None:
        return title, "", ()
    links = _resolve_links(main, base)
    _replace_images(main)
    markdown = convert(main.html or "", _OPTIONS).content
    return title, markdown or main.text(separator="\n"), links  # the converter returns nothing for very deep nesting


def _find_title(page: LexborHTMLParser) -> str:
    for selector in ("title", "h1"):
        node = page.css_first(selector)
        if node is not None and (text := node.text().strip()):
            return text
    return ""


def _find_base(page: LexborHTMLParser, url: str) -> str:
    node = page.css_first("base[href]")
    found = absolute_links(url, [node.attributes.get("href") or ""]) if node is not None else []
    return found[0] if found else url


def _is_hidden(node: LexborNode) -> bool:
    """Return whether an inline style hides the element; style sheets are ignored."""
    style = "".join((node.attributes.get("style") or "").lower().split())
    return any(f"{each};" in f"{style};" for each in _HIDING_STYLES)


def _find_main(page: LexborHTMLParser) -> LexborNode | None:
    """Return the element with the main content, or the body if that element has next to no text."""
    body = page.body
    if body is None:
        return None
    for selector in _MAIN_SELECTORS:
        found = page.css(selector)
        if len(found) == 1 or (found and selector != "article"):
            chosen = found[0]
            _remove_boilerplate(chosen)
            if len(chosen.text(strip=True)) >= _MIN_MAIN_TEXT:
                return chosen
    _remove_boilerplate(body)
    return body


def _remove_boilerplate(part: LexborNode) -> None:
    for node in part.css(_BOILERPLATE):
        node.decompose()


def _resolve_links(part: LexborNode, base: str) -> tuple[tuple[str, str], ...]:
    """Make the links absolute, and return each target once with its label."""
    found: dict[str, str] = {}
    for node in part.css("a[href]"):
        absolute = absolute_links(base, [node.attributes.get("href") or ""])
        if not absolute:
            node.unwrap()
            continue
        node.attrs["href"] = absolute[0]
        label = one_line(node.text(), _MAX_LABEL)
        target = absolute[0].partition("#")[0]
        if label and target != base.partition("#")[0]:
            found.setdefault(target, label)
    return tuple((label, target) for target, label in list(found.items())[:_MAX_LINKS])


def _replace_images(part: LexborNode) -> None:
    """Replace images with their alternative text, because a model cannot use their URLs."""
    for node in part.css("img, picture"):
        label = one_line(node.attributes.get("alt") or "", _MAX_LABEL)
        if label:
            node.replace_with(f"[image: {label}]")
        else:
            node.decompose()
