const ALLOWED_PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/** Return an absolute URL that a model may link to, or null: no scripts, data URLs, files or parts of this page. */
export function safeUrl(href: string): string | null {
  let url: URL;
  try {
    url = new URL(href.trim());
  } catch {
    return null;
  }
  return ALLOWED_PROTOCOLS.has(url.protocol) ? url.href : null;
}
