// Mermaid diagrams as images: an image runs no script and loads nothing. The source is shown if it cannot be drawn.

import { memo, useEffect, useState } from "react";
import { toSafeLine } from "../state/unicode-safety";

let drawn = 0;
let queue: Promise<unknown> = Promise.resolve();

async function drawDiagram(source: string, dark: boolean): Promise<string> {
  const { default: mermaid } = await import("mermaid");
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    suppressErrorRendering: true,
    htmlLabels: false,
    flowchart: { htmlLabels: false },
    theme: dark ? "dark" : "neutral",
    fontFamily: "system-ui, sans-serif",
  });
  const { svg } = await mermaid.render(`diagram-${++drawn}`, source);
  return svg;
}

/** Mermaid has global settings, so diagrams are drawn one after the other. */
function enqueue(source: string, dark: boolean): Promise<string> {
  const result = queue.then(() => drawDiagram(source, dark));
  queue = result.catch(() => undefined);
  return result;
}

interface Props {
  source: string;
  onError: (reason: string) => void;
}

export const Diagram = memo(function Diagram({ source, onError }: Props) {
  const [svg, setSvg] = useState<string>();
  const dark = document.documentElement.dataset.theme === "dark";
  useEffect(() => {
    let stale = false;
    enqueue(source, dark).then(
      (image) => !stale && setSvg(image),
      (error: Error) => !stale && onError(toSafeLine(error.message, 200)),
    );
    return () => {
      stale = true;
    };
  }, [source, dark, onError]);
  if (!svg) return <p className="muted">Drawing the diagram…</p>;
  return (
    <img className="diagram" src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(sized(svg))}`} alt="Diagram" />
  );
});

/** An image has no size of its own if its width is a percentage; take the size of the drawing. */
function sized(svg: string): string {
  const box = /viewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)"/.exec(svg);
  return box ? svg.replace(/width="100%"/, `width="${box[1]}" height="${box[2]}"`) : svg;
}
