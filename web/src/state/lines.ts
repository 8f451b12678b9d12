// What a tool says while it runs: lines, the last of them kept up to a limit.

export interface Lines {
  readonly text: string;
  /** Earlier lines were left out. */
  readonly cut: boolean;
}

export const NOTHING: Lines = { text: "", cut: false };
export const MOST = 64 * 1024;

/** One more line. It is cut at the start of a line, and not each time: that would copy all of it for every line. */
export function added({ text, cut }: Lines, line: string): Lines {
  const longer = text && !text.endsWith("\n") ? `${text}\n${line}` : text + line;
  if (longer.length <= 2 * MOST) return { text: longer, cut };
  const from = longer.length - MOST;
  const start = longer.indexOf("\n", from) + 1;
  return { text: longer.slice(start || from), cut: true };
}

/** The last few lines. */
export function tailOf(text: string, count: number): string {
  let from = text.endsWith("\n") ? text.length - 1 : text.length;
  const to = from;
  for (let found = 0; found < count; found += 1) {
    from = text.lastIndexOf("\n", from - 1);
    if (from <= 0) return text.slice(from < 0 ? 0 : from, to);
  }
  return text.slice(from + 1, to);
}
