// Code block with syntax highlighting, a copy button, and a button to open it in the artifact panel.

import type { ElementContent, Root, RootContent } from "hast";
import { lazy, memo, type ReactNode, Suspense, use, useEffect, useState } from "react";
import { artifactKind, OpenArtifact } from "../artifacts/artifacts";
import { CopyButton } from "../components/buttons";
import { ReadText } from "../components/exact-text";

const MAX_HIGHLIGHTED_LENGTH = 40_000;

const MAX_DIAGRAM_LENGTH = 20_000;
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

/** Code with syntax highlighting once it is complete. */
export const HighlightedCode = memo(function HighlightedCode({ code, language, streaming }: Props) {
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
    <pre tabIndex={0}>
      <code>{root ? root.children.map(renderNode) : <ReadText text={code} />}</code>
    </pre>
  );
});

export const CodeBlock = memo(function CodeBlock({ code, language, streaming }: Props) {
  const [failure, setFailure] = useState("");
  const openArtifact = use(OpenArtifact);
  const kind = !streaming && openArtifact ? artifactKind({ language, code }) : undefined;
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
        {kind && (
          <button type="button" className="preview-toggle" onClick={() => openArtifact?.({ language, code })}>
            {kind === "code" ? "Open in panel" : "Preview"}
          </button>
        )}
        <CopyButton text={code} label="Copy code" />
      </figcaption>
      <HighlightedCode code={code} language={language} streaming={streaming} />
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
