import { useEffect } from "react";

/** When the component unmounts, return the focus to the element that had it before, unless another one has taken it. */
export function useRestoreFocus(): void {
  useEffect(() => {
    const previous = document.activeElement;
    return () => {
      setTimeout(() => {
        const lost = !document.activeElement || document.activeElement === document.body;
        if (lost && previous instanceof HTMLElement && previous.isConnected) previous.focus();
      });
    };
  }, []);
}
