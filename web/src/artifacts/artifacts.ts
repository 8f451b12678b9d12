// Artifacts of a chat: code blocks that are worth a panel of their own, with their earlier versions.

import { createContext } from "react";
import { messageText } from "../state/conversation";
import { toSafeLine } from "../state/unicode-safety";
import type { MessageShape } from "../wire";

export type ArtifactKind = "html" | "svg" | "csv" | "code";

export interface CodeSource {
  language: string;
  code: string;
}

export interface Artifact {
  kind: ArtifactKind;
  language: string;
  title: string;
  /** The code of each version, oldest first. */
  versions: string[];
}

/** Opens a code block in the panel of the chat. Outside of a chat there is none. */
export const OpenArtifact = createContext<((source: CodeSource) => void) | undefined>(undefined);

const MIN_CODE_LINES = 40;
const MAX_PREVIEWED_LENGTH = 200_000;
const KINDS: Record<string, ArtifactKind> = {
  html: "html",
  htm: "html",
  xhtml: "html",
  svg: "svg",
  csv: "csv",
  tsv: "csv",
};
const NAMES: Record<ArtifactKind, string> = { html: "Page", svg: "Drawing", csv: "Table", code: "Code" };

/** Return what kind of artifact a code block is; undefined if it is too short to be one. */
export function artifactKind({ language, code }: CodeSource): ArtifactKind | undefined {
  const kind = language.toLowerCase() === "xml" && /^\s*<svg\b/.test(code) ? "svg" : KINDS[language.toLowerCase()];
  if (kind && code.length <= MAX_PREVIEWED_LENGTH) return kind;
  return code.split("\n", MIN_CODE_LINES).length === MIN_CODE_LINES ? "code" : undefined;
}

const blocks = new WeakMap<MessageShape, CodeSource[]>();

/** Return the artifacts in the answers of a chat. Blocks of one language with the same title are versions of one. */
export function findArtifacts(messages: readonly MessageShape[]): Artifact[] {
  const found = new Map<string, Artifact>();
  for (const message of messages) {
    if (message.role !== "assistant") continue;
    const sources = blocks.get(message) ?? codeBlocks(messageText([message]));
    blocks.set(message, sources);
    for (const source of sources) {
      const artifact = toArtifact(source);
      if (!artifact) continue;
      const known = found.get(`${artifact.language} ${artifact.title}`);
      if (!known) found.set(`${artifact.language} ${artifact.title}`, artifact);
      else if (!known.versions.includes(source.code)) known.versions.push(source.code);
    }
  }
  return [...found.values()];
}

/** Return a code block as an artifact with one version. */
export function toArtifact(source: CodeSource): Artifact | undefined {
  const kind = artifactKind(source);
  return kind && { kind, language: source.language, title: titleOf(kind, source), versions: [source.code] };
}

function titleOf(kind: ArtifactKind, { language, code }: CodeSource): string {
  const found =
    kind === "csv"
      ? (code.split("\n", 1)[0] ?? "").split(/[,;\t]/).join(", ")
      : kind === "code"
        ? /(?:class|def|function|interface|struct|fn|func)\s+(\w+)/.exec(code)?.[1]
        : (/<title[^>]*>([^<]+)<\/title>/i.exec(code)?.[1] ?? /<h1[^>]*>([^<]+)<\/h1>/i.exec(code)?.[1]);
  return toSafeLine(found?.trim() || `${NAMES[kind]}${kind === "code" && language ? ` in ${language}` : ""}`, 60);
}

const FENCE = /^\s*(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;

/** Return the closed code blocks of a Markdown text. */
export function codeBlocks(text: string): CodeSource[] {
  const found: CodeSource[] = [];
  if (!text.includes("```") && !text.includes("~~~")) return found;
  let open: { mark: string; language: string; lines: string[] } | undefined;
  for (const line of text.split("\n")) {
    const fence = FENCE.exec(line);
    if (open && fence && fence[2] === "" && fence[1]?.startsWith(open.mark)) {
      found.push({ language: open.language, code: open.lines.join("\n") });
      open = undefined;
    } else if (open) open.lines.push(line);
    else if (fence) open = { mark: fence[1] ?? "", language: fence[2] ?? "", lines: [] };
  }
  return found;
}
