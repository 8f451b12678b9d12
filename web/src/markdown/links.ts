// Where a link in a model's words may lead, and how it is shown.

const ALLOWED = new Set(["http:", "https:", "mailto:"]);

/** The address if a person may follow it, else null: no scripts, no data, no files, nothing of this page itself. */
export function safeAddress(href: string): string | null {
  let url: URL;
  try {
    url = new URL(href.trim());
  } catch {
    return null;
  }
  return ALLOWED.has(url.protocol) ? url.href : null;
}
