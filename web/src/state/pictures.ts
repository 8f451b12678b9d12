// Pictures in what a tool gave back: found wherever they stand in it, and taken out of the text that is shown.

export interface Picture {
  kind: string;
  data: string;
  /** What it is, as far as the result says. */
  name: string;
}

const KINDS = /^image\/(png|jpeg|gif|webp)$/;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const DEEPEST = 6;
export const MOST = 12;
/** Of more characters nothing is shown: the browser would hold it several times over. */
export const LARGEST = 6_000_000;

/** A picture's address for `<img>`; null for what is none that may be shown here. */
export function addressOf({ kind, data }: { kind: string; data: string }): string | null {
  return KINDS.test(kind) && data.length <= LARGEST && BASE64.test(data) ? `data:${kind};base64,${data}` : null;
}

/** The result with a note in the place of each picture, and the pictures. */
export function parted(result: unknown): { rest: unknown; pictures: Picture[] } {
  const pictures: Picture[] = [];
  const visit = (value: unknown, name: string, depth: number): unknown => {
    if (typeof value !== "object" || value === null || depth > DEEPEST) return value;
    const found = pictureIn(value as Record<string, unknown>, name);
    if (found) {
      if (pictures.length < MOST) pictures.push(found);
      return `(${found.kind}, ${sizeOf(found.data)})`;
    }
    if (Array.isArray(value)) return value.map((each) => visit(each, name, depth + 1));
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, visit(each, key, depth + 1)]));
  };
  const rest = visit(result, "", 0);
  return pictures.length ? { rest, pictures } : { rest: result, pictures };
}

function pictureIn(value: Record<string, unknown>, name: string): Picture | null {
  const kind = value.media_type ?? value.mediaType ?? value.mimeType;
  if (value.type !== "image" || typeof kind !== "string" || typeof value.data !== "string" || !value.data) return null;
  const said = value.alt ?? value.title ?? value.name;
  return { kind, data: value.data, name: typeof said === "string" ? said : name };
}

export function sizeOf(data: string): string {
  const bytes = (data.length * 3) / 4;
  return bytes < 1024
    ? `${Math.round(bytes)} bytes`
    : bytes < 1024 * 1024
      ? `${Math.round(bytes / 1024)} KB`
      : `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}
