// Code block with syntax highlighting and a copy button.

import type { ElementContent, Root, RootContent } from "hast";
import { memo, type ReactNode, useEffect, useState } from "react";
import { CopyButton } from "../components/buttons";
import { ReadText } from "../components/exact-text";

const MAX_HIGHLIGHTED_LENGTH = 40_000;

type Highlight = (language: string, code: string) => Root | null;

let highlighter: Promise<Highlight> | undefined;

function loadHighlighter(): Promise<Highlight> {
  highlighter ??= import("./highlight").then((module) => module.highlight);
  return highlighter;
}

interface Props {
  code: string;
  language: string;
  streaming: boolean;
}

export const CodeBlock = memo(function CodeBlock({ code, language, streaming }: Props) {
  const [highlighted, setHighlighted] = useState<{ code: string; root: Root | null }>();
  useEffect(() => {
    if (streaming || !language || code.length > MAX_HIGHLIGHTED_LENGTH) return;
    let stale = false;
    void loadHighlighter().then((highlight) => {
      if (!stale) setHighlighted({ code, root: highlight(language.toLowerCase(), code) });
    });
    return () => {
      stale = true;
    };
  }, [code, language, streaming]);
  const root = highlighted?.code === code ? highlighted.root : null;
  return (
    <figure className="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={code} label="Copy code" />
      </figcaption>
      <pre tabIndex={0}>
        <code>{root ? root.children.map(renderNode) : <ReadText text={code} />}</code>
      </pre>
    </figure>
  );
});

function renderNode(node: RootContent | ElementContent, index: number): ReactNode {
  if (node.type === "text") return <ReadText key={index} text={node.value} />;
  if (node.type !== "element") return null;
  const names = node.properties.className;
  return (
    <span key={index} className={Array.isArray(names) ? names.join(" ") : undefined}>
      {node.children.map(renderNode)}
    </span>
  );
}
