// Images in tool results: found at any depth, and replaced by a short note in the text that is shown.

export interface ImageData {
  mediaType: string;
  data: string;
  /** Title or field name, as far as the result has one. */
  name: string;
}

const SAFE_MEDIA_TYPES = /^image\/(png|jpeg|gif|webp)$/;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const MAX_DEPTH = 6;
const MAX_IMAGES = 12;
/** Larger images are not shown: the browser would hold several copies in memory. */
const MAX_DATA_LENGTH = 6_000_000;

/** Return a data URL for `<img>`, or null if the image is too large, malformed or of an unsafe type. */
export function imageUrl({ mediaType, data }: Pick<ImageData, "mediaType" | "data">): string | null {
  const safe = SAFE_MEDIA_TYPES.test(mediaType) && data.length <= MAX_DATA_LENGTH && BASE64.test(data);
  return safe ? `data:${mediaType};base64,${data}` : null;
}

/** Return the images of a result, and the result with a note in place of each. */
export function extractImages(result: unknown): { rest: unknown; images: ImageData[] } {
  const images: ImageData[] = [];
  const visit = (value: unknown, name: string, depth: number): unknown => {
    if (typeof value !== "object" || value === null || depth > MAX_DEPTH) return value;
    const image = parseImage(value as Record<string, unknown>, name);
    if (image) {
      if (images.length < MAX_IMAGES) images.push(image);
      return `(${image.mediaType}, ${formatDataSize(image.data)})`;
    }
    if (Array.isArray(value)) return value.map((item) => visit(item, name, depth + 1));
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, visit(item, key, depth + 1)]));
  };
  const rest = visit(result, "", 0);
  return images.length ? { rest, images } : { rest: result, images };
}

function parseImage(value: Record<string, unknown>, name: string): ImageData | null {
  const mediaType = value.media_type ?? value.mediaType ?? value.mimeType;
  if (value.type !== "image" || typeof mediaType !== "string" || typeof value.data !== "string" || !value.data)
    return null;
  const title = value.alt ?? value.title ?? value.name;
  return { mediaType, data: value.data, name: typeof title === "string" ? title : name };
}

/** Format the size of Base64 data. */
export function formatDataSize(data: string): string {
  const bytes = (data.length * 3) / 4;
  if (bytes < 1024) return `${Math.round(bytes)} bytes`;
  const kilobytes = bytes / 1024;
  return kilobytes < 1024 ? `${Math.round(kilobytes)} KB` : `${(kilobytes / 1024).toFixed(1)} MB`;
}
