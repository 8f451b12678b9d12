// What a tool says while it runs: its last lines, which follow it unless a person has scrolled up.

import { memo, useLayoutEffect, useRef } from "react";
import { type Lines, tailOf } from "../state/lines";

const SHOWN = 400;
const NEAR = 24;

export const Tail = memo(function Tail({ lines, live }: { lines: Lines; live: boolean }) {
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  const shown = live ? tailOf(lines.text, SHOWN) : lines.text;
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current!;
    follows.current = scrollTop + clientHeight > scrollHeight - NEAR;
  };
  return (
    <pre
      ref={box}
      className={live ? "tail live" : "tail"}
      tabIndex={0}
      role="log"
      aria-label="What the tool says"
      aria-live="off"
      onScroll={scrolled}
    >
      {(lines.cut || shown.length < lines.text.trimEnd().length) && (
        <span className="faint">… earlier lines{"\n"}</span>
      )}
      {shown}
    </pre>
  );
});
