// Detection of characters that could make a text look like something else: invisible ones, bidirectional controls,
// unusual spaces and letters of other alphabets that look like Latin ones.

const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is searched for
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: each combining character is searched for by itself
  /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** Characters that reorder or hide others in any language: bidirectional, control, zero-width and tag characters. */
const REORDERING =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is searched for
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Whitespace that could push text out of view. */
const LONG_WHITESPACE = /[ \t]{12,}|\n(?:[ \t]*\n){2,}/g;
/** Greek, Cyrillic, Armenian, Cherokee, Coptic, Lisu, full-width and mathematical letters. */
const LOOKALIKES =
  /[\u0370-\u03ff\u0400-\u052f\u0531-\u0587\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff\uff01-\uff5e]|[\u{1d400}-\u{1d7ff}]/gu;

export interface TextPiece {
  text: string;
  /** The text is a description of an unsafe sequence, not the sequence itself. */
  unsafe: boolean;
}

/**
 * Split a text that a decision is based on at every unsafe sequence, and replace each with a description. With `latin`,
 * the text stands among Latin letters, so that look-alike letters count even if it has no Latin ones itself.
 */
export function splitUnsafeText(text: string, latin = /[a-z]/i.test(text)): TextPiece[] {
  return split(text, [
    [LONG_WHITESPACE, describeWhitespace],
    [HIDDEN, codePoint],
    ...(latin ? [[LOOKALIKES, describeLetter] satisfies Unsafe] : []),
  ]);
}

/** Split a text that is only read, such as output or code, at characters that reorder or hide others. */
export function splitReorderedText(text: string): TextPiece[] {
  return split(text, [[REORDERING, codePoint]]);
}

type Unsafe = [pattern: RegExp, describe: (match: string) => string];

function split(text: string, patterns: Unsafe[]): TextPiece[] {
  const matches: { from: number; to: number; description: string }[] = [];
  for (const [pattern, describe] of patterns)
    for (const match of text.matchAll(pattern))
      matches.push({ from: match.index, to: match.index + match[0].length, description: describe(match[0]) });
  matches.sort((a, b) => a.from - b.from);
  const pieces: TextPiece[] = [];
  let end = 0;
  for (const { from, to, description } of matches) {
    if (from < end) continue;
    if (from > end) pieces.push({ text: text.slice(end, from), unsafe: false });
    pieces.push({ text: description, unsafe: true });
    end = to;
  }
  if (end < text.length) pieces.push({ text: text.slice(end), unsafe: false });
  return pieces;
}

function describeWhitespace(match: string): string {
  return match.startsWith("\n") ? `${match.split("\n").length - 2} empty lines` : `${match.length} spaces`;
}

function describeLetter(letter: string): string {
  return `${letter} ${codePoint(letter)}`;
}

function codePoint(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Return the beginning of a text on one line, with unsafe sequences spelled out in brackets. */
export function toSafeLine(text: string, length = 160): string {
  const pieces = splitUnsafeText(text.slice(0, length).replace(/\s*\n\s*/g, " ⏎ "));
  return pieces.map((piece) => (piece.unsafe ? `[${piece.text}]` : piece.text)).join("");
}
