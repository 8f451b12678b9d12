// Formulas in TeX. KaTeX is loaded with the first one and creates MathML elements; the source is shown until then.

import { memo, useEffect, useRef } from "react";
import { ReadText } from "../components/exact-text";

/** No HTML, links or images from a formula, and limits against formulas that never end. */
const OPTIONS = { output: "mathml", trust: false, maxExpand: 200, maxSize: 20, throwOnError: false } as const;

export const Formula = memo(function Formula({ source, display }: { source: string; display: boolean }) {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    let stale = false;
    void import("katex").then(({ default: katex }) => {
      if (!stale && element.current) katex.render(source, element.current, { ...OPTIONS, displayMode: display });
    });
    return () => {
      stale = true;
    };
  }, [source, display]);
  // A key per source: React must not reuse an element whose content KaTeX has replaced.
  return (
    <span key={source} ref={element} className={display ? "formula display" : "formula"}>
      <ReadText text={source} />
    </span>
  );
});
