// Code block with syntax highlighting and a copy button.

import type { ElementContent, Root, RootContent } from "hast";
import { lazy, memo, type ReactNode, Suspense, useEffect, useState } from "react";
import { CopyButton } from "../components/buttons";
import { ReadText } from "../components/exact-text";

const MAX_HIGHLIGHTED_LENGTH = 40_000;

const MAX_DIAGRAM_LENGTH = 20_000;
const MAX_PREVIEWED_LENGTH = 200_000;
const PREVIEWED = new Set(["csv", "svg"]);
const Preview = lazy(() => import("./preview"));
const Diagram = lazy(() => import("./mermaid").then((module) => ({ default: module.Diagram })));

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
  const [failure, setFailure] = useState("");
  const [preview, setPreview] = useState(false);
  const previewable = !streaming && PREVIEWED.has(language) && code.length <= MAX_PREVIEWED_LENGTH;
  if (language === "mermaid" && !streaming && !failure && code.length < MAX_DIAGRAM_LENGTH)
    return (
      <figure className="code">
        <figcaption>
          <span>Diagram</span>
          <CopyButton text={code} label="Copy source" />
        </figcaption>
        <Suspense fallback={<p className="muted">Drawing the diagram…</p>}>
          <Diagram source={code} onError={setFailure} />
        </Suspense>
      </figure>
    );
  return (
    <figure className="code">
      <figcaption>
        <span>{failure ? `mermaid · The diagram could not be drawn: ${failure}` : language || "text"}</span>
        {previewable && (
          <button type="button" className="preview-toggle" aria-pressed={preview} onClick={() => setPreview(!preview)}>
            {preview ? "Code" : "Preview"}
          </button>
        )}
        <CopyButton text={code} label="Copy code" />
      </figcaption>
      {preview ? (
        <Suspense fallback={<p className="muted">Loading…</p>}>
          <Preview language={language} code={code} />
        </Suspense>
      ) : (
        <pre tabIndex={0}>
          <code>{root ? root.children.map(renderNode) : <ReadText text={code} />}</code>
        </pre>
      )}
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
