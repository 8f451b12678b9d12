import { expect, it } from "vitest";
import type { MessageShape } from "../wire";
import { artifactKind, codeBlocks, findArtifacts } from "./artifacts";

const answer = (text: string): MessageShape =>
  ({ id: text, role: "assistant", parts: [{ type: "text", text }], createdAt: 0, seq: 0 }) as unknown as MessageShape;

it("code blocks end at a fence of the same kind that is at least as long", () => {
  expect(codeBlocks("a\n````md\n```js\n1\n```\n````\n~~~csv\na,b\n~~~\n```open")).toEqual([
    { language: "md", code: "```js\n1\n```" },
    { language: "csv", code: "a,b" },
  ]);
});

it("pages, drawings, tables and long code are artifacts", () => {
  expect(artifactKind({ language: "HTML", code: "<p>" })).toBe("html");
  expect(artifactKind({ language: "xml", code: "<svg></svg>" })).toBe("svg");
  expect(artifactKind({ language: "tsv", code: "a\tb" })).toBe("csv");
  expect(artifactKind({ language: "python", code: "x = 1" })).toBeUndefined();
  expect(artifactKind({ language: "python", code: "x\n".repeat(50) })).toBe("code");
  expect(artifactKind({ language: "html", code: "x".repeat(300_000) })).toBeUndefined();
});

it("blocks with the same title are versions of one artifact", () => {
  const page = (text: string) => `\`\`\`html\n<title>Clock</title>${text}\n\`\`\``;
  const messages = [answer(page("one")), answer("text"), answer(`${page("two")}\n\`\`\`csv\na,b\n1,2\n\`\`\``)];
  expect(findArtifacts(messages)).toEqual([
    {
      kind: "html",
      language: "html",
      title: "Clock",
      versions: ["<title>Clock</title>one", "<title>Clock</title>two"],
    },
    { kind: "csv", language: "csv", title: "a, b", versions: ["a,b\n1,2"] },
  ]);
  expect(findArtifacts(messages)[0]?.versions).toHaveLength(2);
});
