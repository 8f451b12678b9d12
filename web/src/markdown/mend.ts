// The end of an answer that still grows, made whole: a mark that was opened and not closed yet would jump about.

const PAIRS = ["**", "`", "~~"] as const;

export function mended(text: string): string {
  const start = text.lastIndexOf("\n\n") + 1;
  const tail = text.slice(start);
  if (insideFence(text)) return text;
  let more = "";
  for (const mark of PAIRS) {
    const count = tail.split(mark).length - 1;
    if (count % 2 === 1 && !tail.endsWith(mark) && !more.includes("`")) more += mark;
  }
  return text + more;
}

function insideFence(text: string): boolean {
  const fences = text.match(/^ {0,3}(```|~~~)/gm);
  return fences !== null && fences.length % 2 === 1;
}
