// Renders Markdown as React elements. Text is parsed into tokens and each token becomes an element; no HTML is ever
// created from text, so there is nothing to sanitize.

import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";
import { memo, type ReactNode, useMemo } from "react";
import { ReadText } from "../components/exact-text";
import { CodeBlock } from "./code";
import { safeUrl } from "./links";
import { Formula } from "./math";

interface MarkdownProps {
  text: string;
  streaming?: boolean;
  /** Keep line breaks, as people write them. */
  breaks?: boolean;
}

export const Markdown = memo(function Markdown({ text, streaming = false, breaks = false }: MarkdownProps) {
  const blocks = useMemo(
    () => parseMarkdown(streaming ? closeOpenMarks(text) : text, breaks),
    [text, streaming, breaks],
  );
  return (
    <div className="markdown">
      {blocks.map((block, index) => (
        <Block key={index} raw={block.raw} token={block} streaming={streaming && index === blocks.length - 1} />
      ))}
    </div>
  );
});

/** A formula. `text` is its source in TeX. */
interface MathToken extends Tokens.Generic {
  type: "math";
  text: string;
  display: boolean;
}

const BLOCK_FORMULA = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
/** A dollar sign before a space or after a digit is an amount of money. */
const INLINE_FORMULA = /^(?:\$\$([^$]+?)\$\$|\$(?![\s$])((?:\\.|[^\\\n$`])+?)(?<!\s)\$(?!\d)|\\\(([^\n]+?)\\\))/;

function formulaExtension(level: "block" | "inline", pattern: RegExp): TokenizerAndRendererExtension {
  return {
    name: "math",
    level,
    start: (source) => {
      // A block interrupts a paragraph only at the start of a line.
      const at = source.search(level === "block" ? /\n(?=\$\$|\\\[)/ : /\$|\\\(/);
      return at < 0 ? undefined : at + (level === "block" ? 1 : 0);
    },
    tokenizer: (source): MathToken | undefined => {
      const found = pattern.exec(source);
      const text = found?.slice(1).find(Boolean)?.trim();
      if (!found || !text) return undefined;
      return { type: "math", raw: found[0], text, display: level === "block" || found[0].startsWith("$$") };
    },
  };
}

const extensions = [formulaExtension("block", BLOCK_FORMULA), formulaExtension("inline", INLINE_FORMULA)];
const answers = new Marked({ extensions });
const messages = new Marked({ extensions, breaks: true });

export const parseMarkdown = (text: string, breaks = false): Token[] => (breaks ? messages : answers).lexer(text);

const MARKS = ["**", "`", "~~"] as const;

/** Close marks that a streamed text has opened, so that the formatting does not flicker until the end arrives. */
export function closeOpenMarks(text: string): string {
  if (isInsideFence(text)) return text;
  const paragraph = text.slice(text.lastIndexOf("\n\n") + 1);
  let closing = "";
  for (const mark of MARKS) {
    const count = paragraph.split(mark).length - 1;
    if (count % 2 === 1 && !paragraph.endsWith(mark) && !closing.includes("`")) closing += mark;
  }
  return text + closing;
}

function isInsideFence(text: string): boolean {
  const fences = text.match(/^ {0,3}(```|~~~)/gm);
  return fences !== null && fences.length % 2 === 1;
}

/** Renders again only when its own text has changed: in a streamed answer only the last block does. */
const Block = memo(
  function Block({ token, streaming }: { raw: string; token: Token; streaming: boolean }) {
    return <>{renderBlock(token, streaming)}</>;
  },
  (previous, next) => previous.raw === next.raw && previous.streaming === next.streaming,
);

function renderBlock(token: Token, streaming: boolean): ReactNode {
  switch (token.type) {
    case "heading": {
      const { depth, tokens } = token as Tokens.Heading;
      const Heading = `h${Math.min(6, depth + 2)}` as "h3";
      return <Heading className={`level-${depth}`}>{renderInline(tokens)}</Heading>;
    }
    case "paragraph":
      return <p>{renderInline((token as Tokens.Paragraph).tokens)}</p>;
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <CodeBlock code={text} language={(lang ?? "").split(/\s/)[0] ?? ""} streaming={streaming} />;
    }
    case "blockquote":
      return (
        <blockquote>
          {(token as Tokens.Blockquote).tokens.map((child, index) => (
            <Block key={index} raw={child.raw} token={child} streaming={streaming} />
          ))}
        </blockquote>
      );
    case "list":
      return renderList(token as Tokens.List, streaming);
    case "table":
      return renderTable(token as Tokens.Table);
    case "math":
      return <Formula source={(token as MathToken).text} display />;
    case "hr":
      return <hr />;
    case "space":
    case "def":
      return null;
    case "text":
      return "tokens" in token && token.tokens ? renderInline(token.tokens) : plainText(token);
    default:
      return <p>{plainText(token)}</p>; // includes HTML, which is shown as text
  }
}

function renderList({ ordered, start, items }: Tokens.List, streaming: boolean): ReactNode {
  const children = items.map((item, itemIndex) => (
    <li key={itemIndex} className={item.task ? "task" : undefined}>
      {item.task && (
        <input
          type="checkbox"
          checked={item.checked ?? false}
          readOnly
          disabled
          aria-label={item.checked ? "Done" : "To do"}
        />
      )}
      {item.tokens
        .filter((child) => child.type !== "checkbox")
        .map((child, index) => (
          <Block key={index} raw={child.raw} token={child} streaming={streaming && itemIndex === items.length - 1} />
        ))}
    </li>
  ));
  return ordered ? <ol start={start === "" ? undefined : start}>{children}</ol> : <ul>{children}</ul>;
}

function renderTable({ header, rows }: Tokens.Table): ReactNode {
  const renderCells = (row: Tokens.TableCell[], Cell: "th" | "td") =>
    row.map((cell, index) => (
      <Cell key={index} style={cell.align ? { textAlign: cell.align } : undefined}>
        {renderInline(cell.tokens)}
      </Cell>
    ));
  return (
    <div className="table" tabIndex={0}>
      <table>
        <thead>
          <tr>{renderCells(header, "th")}</tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>{renderCells(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function renderInline(tokens: readonly Token[]): ReactNode {
  return tokens.map((token, index) => <Inline key={index} token={token} />);
}

function Inline({ token }: { token: Token }): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong>{renderInline((token as Tokens.Strong).tokens)}</strong>;
    case "em":
      return <em>{renderInline((token as Tokens.Em).tokens)}</em>;
    case "del":
      return <del>{renderInline((token as Tokens.Del).tokens)}</del>;
    case "codespan":
      return (
        <code>
          <ReadText text={(token as Tokens.Codespan).text} />
        </code>
      );
    case "math":
      return <Formula source={(token as MathToken).text} display={(token as MathToken).display} />;
    case "br":
      return <br />;
    case "link": {
      const { href, tokens } = token as Tokens.Link;
      return <ExternalLink href={href}>{renderInline(tokens)}</ExternalLink>;
    }
    case "image": {
      const { href, text } = token as Tokens.Image;
      return <ExternalLink href={href}>{`Image: ${text || href}`}</ExternalLink>;
    }
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return "tokens" in token && token.tokens ? renderInline(token.tokens) : plainText(token);
    default:
      return plainText(token);
  }
}

/** Link to another site, with its URL as the tooltip. Images are links too: nothing is fetched until a click. */
function ExternalLink({ href, children }: { href: string; children: ReactNode }) {
  const url = safeUrl(href);
  if (!url) return <span className="no-link">{children}</span>;
  return (
    <a href={url} target="_blank" rel="noopener noreferrer nofollow" title={url}>
      {children}
    </a>
  );
}

function plainText(token: Token): string {
  return "text" in token && token.type !== "html" ? String(token.text) : token.raw;
}
