// A picture that came with a message or a result: small at first, as large as the window on a click.

import { memo, useEffect, useRef, useState } from "react";
import { addressOf, type Picture as Given, sizeOf } from "../state/pictures";

export const Picture = memo(function Picture({ picture, what }: { picture: Given; what: string }) {
  const [large, setLarge] = useState(false);
  const address = addressOf(picture);
  const alt = picture.name ? `${what}: ${picture.name}` : what;
  if (!address)
    return (
      <p className="quiet">
        {alt}, {sizeOf(picture.data)} of {picture.kind}: too large, or of a kind that is not shown here.
      </p>
    );
  return (
    <>
      <button type="button" className="picture" aria-label={`Enlarge: ${alt}`} onClick={() => setLarge(true)}>
        <img src={address} alt={alt} decoding="async" />
      </button>
      {large && <Enlarged address={address} alt={alt} onClose={() => setLarge(false)} />}
    </>
  );
});

/** The browser itself keeps the focus inside, closes it with Esc, and gives the focus back. */
function Enlarged({ address, alt, onClose }: { address: string; alt: string; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      className="enlarged"
      aria-label={alt}
      onClose={onClose}
      onClick={() => dialog.current?.close()}
    >
      <button type="button" autoFocus aria-label="Close" title="Close (Esc)">
        ×
      </button>
      <img src={address} alt={alt} />
    </dialog>
  );
}
