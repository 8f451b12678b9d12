// Unified diffs as rows of a table, with the changed part of lines that replace each other.

export interface DiffCell {
  /** Line number. */
  number: number;
  text: string;
  /** Start and end of the changed part, if the line replaces another one. */
  changed?: [from: number, to: number];
}

/** One row: the same line on both sides, a removed line, an added line, or one that replaces the other. */
export interface DiffRow {
  kind: "same" | "change";
  before?: DiffCell;
  after?: DiffCell;
}

export interface Diff {
  /** Lines before the diff, such as a warning. */
  notes: string[];
  path: string;
  hunks: DiffRow[][];
  added: number;
  removed: number;
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;

/** Parse a text that ends with one unified diff; undefined if it is anything else, so that no line is lost. */
export function parseDiff(text: string): Diff | undefined {
  const lines = text.split("\n");
  const first = lines.findIndex((line, index) => HUNK.test(line) && lines[index - 1]?.startsWith("+++ "));
  if (first < 2 || !lines[first - 2]?.startsWith("--- ")) return undefined;
  const diff: Diff = {
    notes: lines.slice(0, first - 2),
    path: (lines[first - 1] ?? "").slice(4),
    hunks: [],
    added: 0,
    removed: 0,
  };
  for (let at = first; at < lines.length; ) {
    const next = readHunk(diff, lines, at);
    if (next === undefined) return undefined;
    at = next;
  }
  return diff;
}

/** Add the hunk at a line and return the line after it. The counts of its heading say where it ends. */
function readHunk(diff: Diff, lines: string[], at: number): number | undefined {
  const heading = HUNK.exec(lines[at] ?? "");
  if (!heading) return undefined;
  let [before, after] = [Number(heading[1]), Number(heading[3])];
  const [endBefore, endAfter] = [before + Number(heading[2] ?? 1), after + Number(heading[4] ?? 1)];
  const rows: DiffRow[] = [];
  let removed: DiffCell[] = [];
  let added: DiffCell[] = [];
  const close = () => {
    rows.push(...pairLines(removed, added));
    [removed, added] = [[], []];
  };
  let line = at + 1;
  for (; before < endBefore || after < endAfter; line++) {
    const content = lines[line];
    if (content === undefined) return undefined;
    const text = content.slice(1);
    if (content.startsWith("-")) removed.push({ number: before++, text });
    else if (content.startsWith("+")) added.push({ number: after++, text });
    else if (content.startsWith(" ")) {
      close();
      rows.push({ kind: "same", before: { number: before++, text }, after: { number: after++, text } });
    } else return undefined;
  }
  close();
  diff.hunks.push(rows);
  diff.removed += rows.filter((row) => row.kind === "change" && row.before).length;
  diff.added += rows.filter((row) => row.kind === "change" && row.after).length;
  return line;
}

function pairLines(removed: DiffCell[], added: DiffCell[]): DiffRow[] {
  return Array.from({ length: Math.max(removed.length, added.length) }, (_, index): DiffRow => {
    const [before, after] = [removed[index], added[index]];
    if (!before || !after) return { kind: "change", before, after };
    const [start, end] = commonEnds(before.text, after.text);
    return {
      kind: "change",
      before: { ...before, changed: [start, before.text.length - end] },
      after: { ...after, changed: [start, after.text.length - end] },
    };
  });
}

/** Return how many characters two lines have in common at their start and at their end, in whole words. */
function commonEnds(a: string, b: string): [start: number, end: number] {
  const [left, right] = [a.split(/\b/), b.split(/\b/)];
  const most = Math.min(left.length, right.length);
  let head = 0;
  while (head < most && left[head] === right[head]) head++;
  let tail = 0;
  while (tail < most - head && left[left.length - 1 - tail] === right[right.length - 1 - tail]) tail++;
  const length = (words: string[]) => words.join("").length;
  return [length(left.slice(0, head)), tail ? length(left.slice(-tail)) : 0];
}
