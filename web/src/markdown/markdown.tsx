// A model's Markdown as React elements. It is read into tokens and each becomes an element of ours: no HTML is ever
// made from text, so there is nothing to clean.

import { lexer, type Token, type Tokens } from "marked";
import { memo, type ReactNode, useMemo } from "react";
import { CodeBlock } from "./code";
import { safeAddress } from "./links";
import { mended } from "./mend";

export const Markdown = memo(function Markdown({ text, growing = false }: { text: string; growing?: boolean }) {
  const blocks = useMemo(() => lexer(growing ? mended(text) : text), [text, growing]);
  return (
    <div className="markdown">
      {blocks.map((block, place) => (
        <Block key={place} raw={block.raw} token={block} growing={growing && place === blocks.length - 1} />
      ))}
    </div>
  );
});

/** Drawn again only when its own text has changed: of an answer that grows, that is the last block. */
const Block = memo(
  function Block({ token, growing }: { raw: string; token: Token; growing: boolean }) {
    return <>{drawn(token, growing)}</>;
  },
  (before, after) => before.raw === after.raw && before.growing === after.growing,
);

function drawn(token: Token, growing: boolean): ReactNode {
  switch (token.type) {
    case "heading": {
      const { depth, tokens } = token as Tokens.Heading;
      const Heading = `h${Math.min(6, depth + 2)}` as "h3";
      return <Heading className={`level-${depth}`}>{inline(tokens)}</Heading>;
    }
    case "paragraph":
      return <p>{inline((token as Tokens.Paragraph).tokens)}</p>;
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <CodeBlock code={text} language={(lang ?? "").split(/\s/)[0] ?? ""} growing={growing} />;
    }
    case "blockquote":
      return (
        <blockquote>
          {(token as Tokens.Blockquote).tokens.map((each, place) => (
            <Block key={place} raw={each.raw} token={each} growing={growing} />
          ))}
        </blockquote>
      );
    case "list":
      return list(token as Tokens.List, growing);
    case "table":
      return table(token as Tokens.Table);
    case "hr":
      return <hr />;
    case "space":
    case "def":
      return null;
    case "text":
      return "tokens" in token && token.tokens ? inline(token.tokens) : plain(token);
    default:
      return <p>{plain(token)}</p>; // HTML among them: shown as what it is, text
  }
}

function list({ ordered, start, items }: Tokens.List, growing: boolean): ReactNode {
  const children = items.map((item, place) => (
    <li key={place} className={item.task ? "task" : undefined}>
      {item.task && (
        <input
          type="checkbox"
          checked={item.checked ?? false}
          readOnly
          disabled
          aria-label={item.checked ? "done" : "to do"}
        />
      )}
      {item.tokens
        .filter((each) => each.type !== "checkbox")
        .map((each, number) => (
          <Block key={number} raw={each.raw} token={each} growing={growing && place === items.length - 1} />
        ))}
    </li>
  ));
  return ordered ? <ol start={start === "" ? undefined : start}>{children}</ol> : <ul>{children}</ul>;
}

function table({ header, rows }: Tokens.Table): ReactNode {
  const cells = (row: Tokens.TableCell[], Cell: "th" | "td") =>
    row.map((cell, place) => (
      <Cell key={place} style={cell.align ? { textAlign: cell.align } : undefined}>
        {inline(cell.tokens)}
      </Cell>
    ));
  return (
    <div className="table" tabIndex={0}>
      <table>
        <thead>
          <tr>{cells(header, "th")}</tr>
        </thead>
        <tbody>
          {rows.map((row, place) => (
            <tr key={place}>{cells(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[]): ReactNode {
  return tokens.map((token, place) => <Inline key={place} token={token} />);
}

function Inline({ token }: { token: Token }): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong>{inline((token as Tokens.Strong).tokens)}</strong>;
    case "em":
      return <em>{inline((token as Tokens.Em).tokens)}</em>;
    case "del":
      return <del>{inline((token as Tokens.Del).tokens)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link": {
      const { href, tokens } = token as Tokens.Link;
      return <Outside href={href}>{inline(tokens)}</Outside>;
    }
    case "image": {
      const { href, text } = token as Tokens.Image;
      return <Outside href={href}>{`Picture: ${text || href}`}</Outside>;
    }
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return "tokens" in token && token.tokens ? inline(token.tokens) : plain(token);
    default:
      return plain(token);
  }
}

/** A link leads out only when a person clicks it, and says where to. A picture is a link too: nothing is fetched. */
function Outside({ href, children }: { href: string; children: ReactNode }) {
  const address = safeAddress(href);
  if (!address) return <span className="no-link">{children}</span>;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer nofollow" title={address}>
      {children}
    </a>
  );
}

function plain(token: Token): string {
  return "text" in token && token.type !== "html" ? String(token.text) : token.raw;
}
