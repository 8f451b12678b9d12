// A block of code: coloured, and copied with one click.

import type { ElementContent, Root, RootContent } from "hast";
import { memo, type ReactNode, useEffect, useState } from "react";
import { Icon } from "../look/icon";
import { painter } from "./languages";

const LONGEST = 40_000;

export const CodeBlock = memo(function CodeBlock({
  code,
  language,
  growing,
}: {
  code: string;
  language: string;
  growing: boolean;
}) {
  const [painted, setPainted] = useState<{ code: string; root: Root | null }>();
  useEffect(() => {
    if (growing || !language || code.length > LONGEST) return;
    let wanted = true;
    void painter().then((paint) => wanted && setPainted({ code, root: paint(language.toLowerCase(), code) }));
    return () => void (wanted = false);
  }, [code, language, growing]);
  const root = painted?.code === code ? painted.root : null;
  return (
    <figure className="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={code} what="Copy code" />
      </figcaption>
      <pre tabIndex={0}>
        <code>{root ? root.children.map(colour) : code}</code>
      </pre>
    </figure>
  );
});

function colour(node: RootContent | ElementContent, place: number): ReactNode {
  if (node.type === "text") return node.value;
  if (node.type !== "element") return null;
  const names = node.properties.className;
  return (
    <span key={place} className={Array.isArray(names) ? names.join(" ") : undefined}>
      {node.children.map(colour)}
    </span>
  );
}

export function CopyButton({ text, what }: { text: string; what: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return;
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button
      type="button"
      className="act"
      aria-label={what}
      title={copied ? "Copied" : what}
      onClick={() => void copy()}
    >
      <Icon name={copied ? "check" : "copy"} />
    </button>
  );
}
