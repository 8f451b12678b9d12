// A change of a file: both versions side by side, or below each other on a narrow screen.

import { memo, type ReactNode } from "react";
import type { Diff, DiffCell, DiffRow } from "../state/diff";
import { useMediaQuery } from "../state/hooks";
import { splitUnsafeText } from "../state/unicode-safety";

export const DiffTable = memo(function DiffTable({ diff }: { diff: Diff }) {
  const narrow = useMediaQuery("(max-width: 899px)");
  // Look-alike letters are found in context: a line without a Latin letter can still stand among Latin lines.
  const context = diff.hunks.flat().map((row) => `${row.before?.text ?? ""} ${row.after?.text ?? ""}`);
  const latin = /[a-z]/i.test(context.join(" "));
  const unsafe = context.reduce(
    (count, text) => count + splitUnsafeText(text, latin).filter((p) => p.unsafe).length,
    0,
  );
  return (
    <>
      <section className={narrow ? "diff unified" : "diff"} aria-label={`Changes to ${diff.path}`} tabIndex={0}>
        <table>
          {diff.hunks.map((rows, index) => (
            <tbody key={index}>
              {(narrow ? rows.flatMap(unifyRow) : rows).map((row, line) => (
                <tr key={line}>
                  {narrow ? unifiedCells(row, latin) : [...cells(row, "before", latin), ...cells(row, "after", latin)]}
                </tr>
              ))}
            </tbody>
          ))}
        </table>
      </section>
      {unsafe > 0 && (
        <p className="exact-text-note" role="note">
          Hidden or misleading characters are highlighted.
        </p>
      )}
    </>
  );
});

/** Split a replaced line into a removed and an added one. */
function unifyRow(row: DiffRow): DiffRow[] {
  if (row.kind === "same" || !row.before || !row.after) return [row];
  return [
    { kind: "change", before: row.before },
    { kind: "change", after: row.after },
  ];
}

function cells(row: DiffRow, side: "before" | "after", latin: boolean): ReactNode[] {
  const cell = row[side];
  const kind = row.kind === "same" ? "" : !cell ? "none" : side === "before" ? "removed" : "added";
  return [
    <th key={`${side} number`} scope="row" className={kind}>
      {cell?.number}
    </th>,
    <td key={side} className={kind}>
      {cell && <Line cell={cell} kind={kind} latin={latin} />}
    </td>,
  ];
}

function unifiedCells(row: DiffRow, latin: boolean): ReactNode {
  const cell = row.after ?? row.before;
  const kind = row.kind === "same" ? "" : row.after ? "added" : "removed";
  return (
    <>
      <th scope="row" className={kind}>
        {row.before?.number}
      </th>
      <th scope="row" className={kind}>
        {row.after?.number}
      </th>
      <td className={kind}>{cell && <Line cell={cell} kind={kind} latin={latin} />}</td>
    </>
  );
}

const SIGNS: Record<string, string> = { added: "+", removed: "−" };

function Line({ cell, kind, latin }: { cell: DiffCell; kind: string; latin: boolean }) {
  const sign = <span className="sign">{SIGNS[kind] ?? " "}</span>;
  const pieces = splitUnsafeText(cell.text, latin);
  if (pieces.some((piece) => piece.unsafe))
    return (
      <>
        {sign}
        {pieces.map((piece, index) => (piece.unsafe ? <mark key={index}>{piece.text}</mark> : piece.text))}
      </>
    );
  const [from, to] = cell.changed ?? [0, 0];
  return (
    <>
      {sign}
      {cell.text.slice(0, from)}
      {to > from && <span className="word">{cell.text.slice(from, to)}</span>}
      {cell.text.slice(to)}
    </>
  );
}
