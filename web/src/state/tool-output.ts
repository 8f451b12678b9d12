// Progress output of a running tool: a line buffer that keeps the end of the output.

export interface OutputBuffer {
  readonly text: string;
  /** Earlier lines were dropped. */
  readonly truncated: boolean;
}

export const EMPTY_OUTPUT: OutputBuffer = { text: "", truncated: false };
export const MAX_OUTPUT_LENGTH = 64 * 1024;

/** Append a line. The text is cut only at twice the limit, so that not every line copies the whole buffer. */
export function appendLine({ text, truncated }: OutputBuffer, line: string): OutputBuffer {
  const longer = text && !text.endsWith("\n") ? `${text}\n${line}` : text + line;
  if (longer.length <= 2 * MAX_OUTPUT_LENGTH) return { text: longer, truncated };
  const from = longer.length - MAX_OUTPUT_LENGTH;
  const lineStart = longer.indexOf("\n", from) + 1;
  return { text: longer.slice(lineStart || from), truncated: true };
}

export function lastLines(text: string, count: number): string {
  const end = text.endsWith("\n") ? text.length - 1 : text.length;
  let from = end;
  for (let found = 0; found < count; found += 1) {
    from = text.lastIndexOf("\n", from - 1);
    if (from <= 0) return text.slice(from < 0 ? 0 : from, end);
  }
  return text.slice(from + 1, end);
}
