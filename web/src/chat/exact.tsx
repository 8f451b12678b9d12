// Text that decides something, shown so that nothing in it can hide.

import { memo } from "react";
import { exactly } from "../state/words";

export const Exact = memo(function Exact({ text, label }: { text: string; label: string }) {
  const pieces = exactly(text);
  const hidden = pieces.filter((piece) => piece.hidden).length;
  return (
    <>
      <pre className="exact" aria-label={label} tabIndex={0}>
        {pieces.map((piece, place) => (piece.hidden ? <mark key={place}>{piece.text}</mark> : piece.text))}
      </pre>
      {hidden > 0 && (
        <p className="exact-note" role="note">
          {hidden === 1 ? "One place" : `${hidden} places`} would be invisible or mistaken;{" "}
          {hidden === 1 ? "it is" : "they are"} marked.
        </p>
      )}
    </>
  );
});
