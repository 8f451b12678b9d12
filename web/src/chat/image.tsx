// Image of a message or tool result: a thumbnail that opens full size in a dialog.

import { memo, useEffect, useRef, useState } from "react";
import { formatDataSize, type ImageData, imageUrl } from "../state/images";

export const ImageThumbnail = memo(function ImageThumbnail({ image, label }: { image: ImageData; label: string }) {
  const [enlarged, setEnlarged] = useState(false);
  const url = imageUrl(image);
  const alt = image.name ? `${label}: ${image.name}` : label;
  if (!url)
    return (
      <p className="muted">
        {alt} ({image.mediaType}, {formatDataSize(image.data)}) cannot be shown: too large or unsupported type.
      </p>
    );
  return (
    <>
      <button type="button" className="thumbnail" aria-label={`Enlarge ${alt}`} onClick={() => setEnlarged(true)}>
        <img src={url} alt={alt} decoding="async" />
      </button>
      {enlarged && <ImageDialog url={url} alt={alt} onClose={() => setEnlarged(false)} />}
    </>
  );
});

/** A native dialog: the browser traps the focus, closes it with Escape and restores the focus. */
function ImageDialog({ url, alt, onClose }: { url: string; alt: string; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape and the close button do the same
    <dialog
      ref={dialog}
      className="image-dialog"
      aria-label={alt}
      onClose={onClose}
      onClick={() => dialog.current?.close()}
    >
      {/* biome-ignore lint/a11y/noAutofocus: a dialog must focus an element inside it */}
      <button type="button" autoFocus aria-label="Close" title="Close (Esc)">
        ×
      </button>
      <img src={url} alt={alt} />
    </dialog>
  );
}
