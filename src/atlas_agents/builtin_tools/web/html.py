"""HTML as Markdown: the main part of the page, without what is around it and without what is not shown."""

from html_to_markdown import ConversionOptions, convert
from selectolax.lexbor import LexborHTMLParser, LexborNode

from atlas_agents.builtin_tools.web.ssrf import absolute
from atlas_agents.core.text import one_line

_SILENT = (
    "script, style, noscript, template, iframe, object, embed, svg, canvas, dialog, video, audio, head, link, meta, "
    "input, select, textarea, button, [hidden], [aria-hidden=true]"
)
_AROUND = (
    "nav, aside, footer, body > header, [role=navigation], [role=banner], [role=contentinfo], [role=search], "
    "[role=complementary], .navbar, .sidebar, .breadcrumb, .breadcrumbs, .cookie-banner, .headerlink"
)
_MAIN = ("main", "[role=main]", "article", "#content", "#main", "#mw-content-text", ".markdown-body", ".post-content")
_UNSEEN = ("display:none", "visibility:hidden", "font-size:0", "opacity:0")
_STYLE = ConversionOptions(extract_metadata=False, autolinks=False, compact_tables=True, bullets="-")
_ENOUGH = 200
_MOST_LINKS = 40
_WORDS = 100


def read_html(html: str, url: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Title, Markdown and links of the main part of a page."""
    page = LexborHTMLParser(html)
    title = _title(page)
    base = _base(page, url)
    for node in page.css(_SILENT):
        node.decompose()
    for node in page.css("[style]"):
        if _is_unseen(node):
            node.decompose()
    main = _main(page)
    if main is None:
        return title, "", ()
    links = _links(main, base)
    _without_pictures(main)
    found = convert(main.html or "", _STYLE).content
    return (
        title,
        found or main.text(separator="\n"),
        links,
    )  # what is nested too deeply for the converter has words, too


def _title(page: LexborHTMLParser) -> str:
    for selector in ("title", "h1"):
        node = page.css_first(selector)
        if node is not None and (text := node.text().strip()):
            return text
    return ""


def _base(page: LexborHTMLParser, url: str) -> str:
    node = page.css_first("base[href]")
    found = absolute(url, [node.attributes.get("href") or ""]) if node is not None else []
    return found[0] if found else url


def _is_unseen(node: LexborNode) -> bool:
    """Whether a style on the element itself keeps it from being seen; sheets are not looked at."""
    style = "".join((node.attributes.get("style") or "").lower().split())
    return any(f"{each};" in f"{style};" for each in _UNSEEN)


def _main(page: LexborHTMLParser) -> LexborNode | None:
    """The part that the page is about: what it says itself, unless there is next to nothing in it."""
    body = page.body
    if body is None:
        return None
    for selector in _MAIN:
        found = page.css(selector)
        if len(found) == 1 or (found and selector != "article"):
            chosen = found[0]
            _clear(chosen)
            if len(chosen.text(strip=True)) >= _ENOUGH:
                return chosen
    _clear(body)
    return body


def _clear(part: LexborNode) -> None:
    for node in part.css(_AROUND):
        node.decompose()


def _links(part: LexborNode, base: str) -> tuple[tuple[str, str], ...]:
    """Make the links of a part whole, and list them, each once."""
    found: dict[str, str] = {}
    for node in part.css("a[href]"):
        whole = absolute(base, [node.attributes.get("href") or ""])
        if not whole:
            node.unwrap()
            continue
        node.attrs["href"] = whole[0]
        words = one_line(node.text(), _WORDS)
        place = whole[0].partition("#")[0]
        if words and place != base.partition("#")[0]:
            found.setdefault(place, words)
    return tuple((words, place) for place, words in list(found.items())[:_MOST_LINKS])


def _without_pictures(part: LexborNode) -> None:
    """What a picture shows is told in words, if it is: its address is of no use to a model."""
    for node in part.css("img, picture"):
        words = one_line(node.attributes.get("alt") or "", _WORDS)
        if words:
            node.replace_with(f"[picture: {words}]")
        else:
            node.decompose()
