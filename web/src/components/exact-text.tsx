// Text that a decision is based on. Invisible, reordering and look-alike characters are spelled out and highlighted.

import { memo } from "react";
import { splitReorderedText, splitUnsafeText, type TextPiece } from "../state/unicode-safety";

export const ExactText = memo(function ExactText({ text, label }: { text: string; label: string }) {
  const pieces = splitUnsafeText(text);
  const unsafe = pieces.filter((piece) => piece.unsafe).length;
  return (
    <>
      <pre className="exact-text" role="group" aria-label={label} tabIndex={0}>
        {pieces.map(renderPiece)}
      </pre>
      {unsafe > 0 && (
        <p className="exact-text-note" role="note">
          {unsafe === 1
            ? "1 hidden or misleading sequence is highlighted."
            : `${unsafe} hidden or misleading sequences are highlighted.`}
        </p>
      )}
    </>
  );
});

/** Text that is only read: characters that reorder or hide others are spelled out and highlighted. */
export const ReadText = memo(function ReadText({ text }: { text: string }) {
  return <>{splitReorderedText(text).map(renderPiece)}</>;
});

function renderPiece(piece: TextPiece, index: number) {
  return piece.unsafe ? <mark key={index}>{piece.text}</mark> : piece.text;
}
