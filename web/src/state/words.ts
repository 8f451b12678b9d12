// Numbers, times and hidden characters in words that people read.

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const whole = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

export const timeOf = (at: number): string => clock.format(at);
export const momentOf = (at: number): string => whole.format(at);

export function whenOf(at: number, now = Date.now()): string {
  return new Date(at).toDateString() === new Date(now).toDateString() ? clock.format(at) : day.format(at);
}

export function spanOf(milliseconds: number): string {
  if (milliseconds < 1) return "< 1 ms";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** How far away a time is: in whole minutes, hours or days, seconds only when they count. */
export function fromNow(at: number, now: number): string {
  const away = Math.abs(at - now);
  const [unit, size] =
    away < 60_000
      ? ["s", 1000]
      : away < 3_600_000
        ? ["min", 60_000]
        : away < 172_800_000
          ? ["h", 3_600_000]
          : ["days", 86_400_000];
  const words = `${Math.floor(away / Number(size))} ${unit}`;
  return at > now ? `in ${words}` : `${words} ago`;
}

export function countOf(number: number): string {
  if (number < 1000) return String(number);
  if (number < 100_000) return `${(number / 1000).toFixed(1).replace(/\.0$/, "")}k`;
  return number < 1_000_000
    ? `${Math.round(number / 1000)}k`
    : `${(number / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
}

export function costOf(dollars: number): string {
  if (dollars === 0) return "$0";
  return dollars < 0.01 ? `$${dollars.toFixed(4)}` : `$${dollars.toFixed(2)}`;
}

// Control characters, marks that turn or join text, spaces that look like nothing or like another: all that could
// make a command look like something else.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

// Room in which something could be pushed out of sight.
const EMPTY = /[ \t]{12,}|\n(?:[ \t]*\n){2,}/g;
// Letters of other alphabets that look like ours, in a text that is otherwise ours.
const STRANGE =
  /[\u0370-\u03ff\u0400-\u052f\u0531-\u0587\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff\uff01-\uff5e]|[\u{1d400}-\u{1d7ff}]/gu;

export interface Shown {
  text: string;
  hidden: boolean;
}

/** Text cut at every place that cannot be seen or could be mistaken; each is written out. */
export function exactly(text: string): Shown[] {
  const marks: { from: number; to: number; words: string }[] = [];
  const each = (pattern: RegExp, words: (found: string) => string) => {
    for (const found of text.matchAll(pattern))
      marks.push({ from: found.index, to: found.index + found[0].length, words: words(found[0]) });
  };
  each(EMPTY, (found) =>
    found.startsWith("\n") ? `${found.split("\n").length - 2} empty lines` : `${found.length} spaces`,
  );
  each(HIDDEN, numberOf);
  if (/[a-z]/i.test(text)) each(STRANGE, (found) => `${found} ${numberOf(found)}`);
  marks.sort((a, b) => a.from - b.from);
  const pieces: Shown[] = [];
  let last = 0;
  for (const { from, to, words } of marks) {
    if (from < last) continue;
    if (from > last) pieces.push({ text: text.slice(last, from), hidden: false });
    pieces.push({ text: words, hidden: true });
    last = to;
  }
  if (last < text.length) pieces.push({ text: text.slice(last), hidden: false });
  return pieces;
}

function numberOf(found: string): string {
  return `U+${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The beginning of a text in one line, with what hides in it written out. */
export function inOneLine(text: string, length = 160): string {
  const pieces = exactly(text.slice(0, length).replace(/\s*\n\s*/g, " ⏎ "));
  return pieces.map((piece) => (piece.hidden ? `[${piece.text}]` : piece.text)).join("");
}

/** A value as text that a person can read. */
export function textOf(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

/** The arguments in one line, as far as they fit. */
export function gistOf(values: Record<string, unknown>): string {
  const entries = Object.entries(values);
  const only = entries[0];
  if (entries.length === 1 && only && typeof only[1] === "string") return inOneLine(only[1]);
  return inOneLine(
    entries.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", "),
  );
}
